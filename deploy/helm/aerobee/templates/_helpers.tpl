{{- define "aerobee.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}{{ $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}{{ end }}
{{- end }}

{{- define "aerobee.image" -}}
{{- $repository := .Values.image.repository }}
{{- if .Values.global.imageRegistry }}{{ $repository = printf "%s/%s" .Values.global.imageRegistry $repository }}{{ end }}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}
{{- else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "aerobee.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "aerobee.labels" -}}
{{ include "aerobee.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "aerobee.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "aerobee.fullname" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "aerobee.cluster" -}}{{ .Values.cluster.name | default .Release.Name }}{{- end }}
{{- define "aerobee.ha" -}}{{ if gt (int .Values.broker.replicas) 1 }}true{{ end }}{{- end }}
{{- /* Whether clients outside come in by Services. */}}
{{- define "aerobee.externalServices" -}}{{ if has .Values.external.mode (list "nodePort" "loadBalancer") }}true{{ end }}{{- end }}
{{- /* The variables of a pod that is reached at ports of its node. */}}
{{- define "aerobee.nodeVariables" -}}
- {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end }}
{{- define "aerobee.domain" -}}{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}{{- end }}

{{- /* "host:port;host:port" of every NameServer, by the names of their pods. */}}
{{- define "aerobee.nameservers" -}}
{{- $name := include "aerobee.fullname" . }}{{ $domain := include "aerobee.domain" . }}
{{- range $i := until (int .Values.nameserver.replicas) }}{{ if $i }};{{ end }}{{ $name }}-nameserver-{{ $i }}.{{ $name }}-nameservers.{{ $domain }}:9876{{ end }}
{{- end }}
{{- define "aerobee.controllers" -}}{{ include "aerobee.nameservers" . | replace ":9876" ":9878" }}{{- end }}
{{- define "aerobee.peers" -}}
{{- range $i, $each := splitList ";" (include "aerobee.controllers" .) }}{{ if $i }};{{ end }}n{{ $i }}-{{ $each }}{{ end }}
{{- end }}

{{- /* The pod's part that all servers share. Call with (dict "root" $ "values" .Values.broker "part" "broker"). */}}
{{- define "aerobee.placement" -}}
{{- $root := .root }}
{{- with $root.Values.global.imagePullSecrets }}
imagePullSecrets: {{ range . }}
  - name: {{ . }}{{ end }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ .values.topologyKey | default "kubernetes.io/hostname" }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- .selector | nindent 8 }}
automountServiceAccountToken: false
enableServiceLinks: false
serviceAccountName: {{ include "aerobee.serviceAccount" $root }}
securityContext: {{ toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- end }}

{{- define "aerobee.container" -}}
image: {{ include "aerobee.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{ toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- /* Started, alive, ready: ready means in sync with the group, not that a port is open. */}}
{{- define "aerobee.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: {{ .failures }}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- define "aerobee.mounts" -}}
- {name: data, mountPath: /var/lib/aerobee}
- {name: config, mountPath: /etc/aerobee, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.enabled }}
- {name: tls, mountPath: /etc/aerobee-tls, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "aerobee.tlsSecret" -}}{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "aerobee.fullname" .)) }}{{- end }}

{{- define "aerobee.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.enabled }}
- {name: tls, secret: {secretName: {{ include "aerobee.tlsSecret" . }}}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "aerobee.tlsKeys" -}}
tls.server.mode={{ .Values.tls.mode }}
{{- if or .Values.tls.existingSecret .Values.tls.certManager.enabled }}
tls.server.certPath=/etc/aerobee-tls/tls.crt
tls.server.keyPath=/etc/aerobee-tls/tls.key
tls.test.mode.enable=false
{{- end }}
{{- end }}

{{- /* What an administrator's commands sign with. */}}
{{- define "aerobee.credentials" -}}
{{- with .Values.access.existingSecret }}
- {name: AEROBEE_ACCESS_KEY, valueFrom: {secretKeyRef: {name: {{ . }}, key: accessKey}}}
- {name: AEROBEE_SECRET_KEY, valueFrom: {secretKeyRef: {name: {{ . }}, key: secretKey}}}
{{- end }}
{{- end }}

{{- /* A number as it was written: Helm reads 16777216 as a float and would write 1.6777216e+07. */}}
{{- define "aerobee.value" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}
