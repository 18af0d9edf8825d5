"""The Helm chart without a cluster: every profile is linted, rendered and held against Kubernetes' schemas; what it writes into
servers' files is what servers take."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from aerobee.config import parse_properties
from aerobee.ops.servers.container import role_flags
from aerobee.ops.settings.settings import (
    BrokerSettings,
    NameServerSettings,
    broker_settings,
    nameserver_settings,
    proxy_settings,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "aerobee"
TOOLS = pathlib.Path(os.environ.get("AEROBEE_DEPLOY_DIR", ROOT / ".deploy")) / "helm"
HELM = TOOLS / "bin" / "helm"
KUBERNETES = "1.34"
NATIVE_GROUPS = (
    "v1",
    "apps/v1",
    "batch/v1",
    "policy/v1",
    "networking.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
)
OPERATORS = {
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "Certificate",
}  # of Prometheus' operator and cert-manager
COMBINATIONS: dict[str, tuple[str, ...]] = {
    **{path.stem: ("-f", str(path)) for path in sorted((CHART / "profiles").glob("*.yaml"))},
    "defaults": (),
    "ha by nodes' addresses": ("-f", str(CHART / "profiles/ha.yaml"), "-f", str(CHART / "profiles/nodeport.yaml")),
    "ha by load balancers": ("-f", str(CHART / "profiles/ha.yaml"), "-f", str(CHART / "profiles/loadbalancer.yaml")),
    "ha by host ports": ("-f", str(CHART / "profiles/ha.yaml"), "-f", str(CHART / "profiles/hostport.yaml")),
    "large numbers": ("--set", "config.broker.mappedFileSizeCommitLog=16777216,config.broker.slaveReadEnable=true"),
    "certificates": ("--set", "tls.certManager.enabled=true,tls.certManager.issuerRef.name=ca,networkPolicy.enabled=true"),
    "a mirror": ("--set", "global.imageRegistry=r.example.org,global.imagePullSecrets={a,b},image.digest=sha256:" + "0" * 64),
    "proxy": ("--set", "proxy.enabled=true,networkPolicy.enabled=true,config.proxy.aclEnable=true"),
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def tools() -> None:
    done = subprocess.run([ROOT / "scripts" / "setup-helm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if str(TOOLS / "site") not in sys.path:
        sys.path.append(str(TOOLS / "site"))


def helm(*arguments: str) -> str:
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(*values: str) -> list[dict[str, Any]]:
    """All manifests of a release "mq" in the namespace "messages"."""
    text = helm("template", "mq", str(CHART), "-n", "messages", *values)
    return [each for each in import_module("yaml").safe_load_all(text) if each]


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in manifests:
        if each["kind"] in ("StatefulSet", "Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]


def sets(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "StatefulSet"}


def settings_in(manifests: list[dict[str, Any]]) -> tuple[BrokerSettings, NameServerSettings]:
    """What the first broker and the first NameServer start with: the file, the variables, the container's defaults."""
    (files,) = (
        each["data"] for each in manifests if each["kind"] == "ConfigMap" and "broker.conf" in each["data"]
    )
    found: list[Any] = []
    for role, name, read in (
        ("broker", "mq-aerobee-broker-0", broker_settings),
        ("nameserver", "mq-aerobee-nameserver", nameserver_settings),
    ):
        container = sets(manifests)[name]["template"]["spec"]["containers"][0]
        pod = f"{name}-0"
        environ = {
            each["name"]: each["value"].replace("$(POD_NAME)", pod).replace("$(HOST_IP)", "192.0.2.1")
            for each in container["env"]
            if "value" in each and each["name"] != "AEROBEE_ADVERTISED_FILE"
        }
        if any(each["name"] == "AEROBEE_ADVERTISED_FILE" for each in container["env"]):
            environ["AEROBEE_ADVERTISED"] = "192.0.2.1:30911"
        written = [
            f"{key}={value.value}" for key, value in parse_properties(files[f"{role}.conf"], role).items()
        ]
        flags = [flag for flag in role_flags(role, environ, pod) if "=" in flag]
        found.append(read(assignments=[*flags, *written], environ=environ))
    return found[0], found[1]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_it_lints_renders_and_fits_kubernetes_schemas(name: str) -> None:
    values = COMBINATIONS[name]
    helm("lint", "--strict", str(CHART), *values)
    validate = import_module("kubernetes_validate").validate
    for each in rendered(*values):
        if each["apiVersion"] in NATIVE_GROUPS:
            validate(each, KUBERNETES, strict=True)
        else:
            assert each["kind"] in OPERATORS


@pytest.mark.parametrize("name", COMBINATIONS)
def test_servers_take_what_it_writes(name: str) -> None:
    values = COMBINATIONS[name]
    if name == "certificates":
        return  # its files are mounted by Kubernetes
    broker, nameserver = settings_in(rendered(*values))
    assert broker.broker.broker_name == "broker-0"
    assert all(":9876" in each for each in broker.broker.nameservers)
    assert broker.broker.metrics_exporter_type == nameserver.server.metrics_exporter_type == "PROM"
    if name == "large numbers":
        assert broker.store.mapped_file_size_commit_log == 16_777_216
    if broker.broker.enable_controller_mode:
        assert nameserver.controller is not None
        assert nameserver.controller.controller_d_leger_self_id == "n0"
        assert list(nameserver.controller.peers.values()) == broker.broker.controller_addr.split(";")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_no_pod_has_more_rights_than_it_needs(name: str) -> None:
    for pod, spec in pods(rendered(*COMBINATIONS[name])):
        assert spec["automountServiceAccountToken"] is False, pod
        assert spec["enableServiceLinks"] is False, (
            pod
        )  # variables named after Services would look like settings
        assert spec["securityContext"]["runAsNonRoot"] is True, pod
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            mounted = [each["mountPath"] for each in container.get("volumeMounts", ())]
            if any("serviceaccount" in path for path in mounted):
                assert container["name"] == "find-address"


def test_ha_has_a_budget_probes_and_a_hand_over_for_each_group() -> None:
    manifests = rendered("-f", str(CHART / "profiles/ha.yaml"))
    assert set(sets(manifests)) == {"mq-aerobee-nameserver", "mq-aerobee-broker-0", "mq-aerobee-broker-1"}
    budgets = {
        each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "PodDisruptionBudget"
    }
    assert {name: each["maxUnavailable"] for name, each in budgets.items()} == dict.fromkeys(
        sets(manifests), 1
    )
    for name, spec in sets(manifests).items():
        container = spec["template"]["spec"]["containers"][0]
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
        if "broker" in name:
            assert "step-down" in " ".join(container["lifecycle"]["preStop"]["exec"]["command"])


def test_each_broker_outside_has_a_service_and_a_port_of_its_own() -> None:
    manifests = rendered(*COMBINATIONS["ha by nodes' addresses"])
    ports = {
        each["metadata"]["name"]: each["spec"]["ports"][0]["nodePort"]
        for each in manifests
        if each["kind"] == "Service" and each["spec"].get("type") == "NodePort"
    }
    assert ports["mq-aerobee-nameserver-external"] == 30_876
    assert ports["mq-aerobee-broker-1-2"] == 30_923
    assert len(set(ports.values())) == len(ports) == 7


@pytest.mark.parametrize(
    ("host", "told"), [("", "$(HOST_IP)"), ("$(NODE_NAME).example.org", "$(NODE_NAME).example.org")]
)
def test_host_ports_are_what_clients_outside_are_told(host: str, told: str) -> None:
    values = f"external.host={host},external.nameserverHostPort=19876,external.brokerHostPortFirst=20911"
    manifests = rendered(*COMBINATIONS["ha by host ports"], "--set", values)
    for name, advertised, port in (
        ("mq-aerobee-broker-0", f"{told}:20911", 20_911),
        ("mq-aerobee-broker-1", f"{told}:20912", 20_912),
        ("mq-aerobee-nameserver", None, 19_876),
    ):
        spec = sets(manifests)[name]["template"]["spec"]
        container = spec["containers"][0]
        ports = {each["name"]: each.get("hostPort") for each in container["ports"]}
        assert {key: value for key, value in ports.items() if value} == {"external": port}
        variables = [each["name"] for each in container["env"]]
        environ = {each["name"]: each for each in container["env"]}
        if advertised is not None:
            assert environ["AEROBEE_ADVERTISED"]["value"] == advertised
            assert environ["HOST_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
            # Kubernetes puts in only what stands before.
            assert max(map(variables.index, ("HOST_IP", "NODE_NAME"))) < variables.index("AEROBEE_ADVERTISED")
        assert "initContainers" not in spec
    kinds = {each["kind"] for each in manifests}
    assert "Role" not in kinds  # no pod uses the API
    services = {each["metadata"]["name"] for each in manifests if each["kind"] == "Service"}
    assert services == {"mq-aerobee-brokers", "mq-aerobee-nameservers", "mq-aerobee-nameserver"}
    (test,) = (each["spec"] for each in manifests if each["kind"] == "Pod")
    environ = {each["name"]: each for each in test["containers"][0]["env"]}
    assert environ["NODE_HOST"]["value"] == told
    assert 'AEROBEE_NAMESRV_ADDR="$NODE_HOST:19876"' in test["containers"][0]["args"][0]


def test_one_address_for_the_replicas_of_a_group_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"external\.host is one address"):
        rendered(*COMBINATIONS["ha by host ports"], "--set", "external.host=203.0.113.7")


def test_rules_and_dashboards_are_those_of_the_repository() -> None:
    manifests = rendered("-f", str(CHART / "profiles/production.yaml"))
    rules = {each["metadata"]["name"]: each["spec"] for each in manifests if each["kind"] == "PrometheusRule"}
    yaml = import_module("yaml")
    for name in ("alerts", "recording"):
        text = (ROOT / "deploy" / "prometheus" / f"{name}.yml").read_text(encoding="utf-8")
        assert rules[f"mq-aerobee-{name}"] == yaml.safe_load(text)
    shown = [
        name
        for each in manifests
        if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        for name in each["data"]
    ]
    assert sorted(shown) == sorted(path.name for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"))


@pytest.mark.parametrize(
    ("value", "kind", "part"),
    [("serviceMonitor", "ServiceMonitor", "endpoints"), ("podMonitor", "PodMonitor", "podMetricsEndpoints")],
)
def test_a_monitor_finds_the_metrics_port_of_every_pod(value: str, kind: str, part: str) -> None:
    manifests = rendered("--set", f"metrics.{value}.enabled=true,metrics.{value}.interval=7s")
    (monitor,) = (each for each in manifests if each["kind"].endswith("Monitor"))
    assert monitor["kind"] == kind
    (endpoint,) = monitor["spec"][part]
    assert (endpoint["port"], endpoint["path"], endpoint["interval"]) == ("metrics", "/metrics", "7s")
    (relabeling,) = endpoint["relabelings"]
    jobs = {
        relabeling["replacement"].replace("$1", each["template"]["metadata"]["labels"]["app.kubernetes.io/component"])
        for each in sets(manifests).values()
    }  # fmt: skip
    scraped = import_module("yaml").safe_load(
        (ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8")
    )
    assert jobs == {each["job_name"] for each in scraped["scrape_configs"]} & {
        "aerobee-broker",
        "aerobee-nameserver",
    }
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = {
        each["metadata"]["name"]: each["spec"]
        for each in manifests
        if each["kind"] == "Service"
        and wanted <= each["metadata"]["labels"].items()
        and any(port["name"] == "metrics" for port in each["spec"]["ports"])
    }
    for spec in sets(manifests).values():  # each set's pods behind one Service with that port, and no other
        labels = spec["template"]["metadata"]["labels"].items()
        assert wanted <= labels
        (found,) = (name for name, each in services.items() if each["selector"].items() <= labels)
        assert found == spec["serviceName"]
        opened = {
            each["name"]: each["containerPort"] for each in spec["template"]["spec"]["containers"][0]["ports"]
        }
        assert {"name": "metrics", "port": opened["metrics"], "targetPort": "metrics"} in services[found][
            "ports"
        ]


@pytest.mark.parametrize(
    "values",
    ["nameserver.replicas=2,broker.replicas=3", "broker.replica=3", "external.mode=hostNetwork", "image.digest=latest",
     "tls.mode=enforcing,broker.replicas=3,nameserver.replicas=3"],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(values: str) -> None:
    done = subprocess.run(
        [HELM, "template", "mq", str(CHART), "--set", values], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "values" in done.stderr


def test_each_value_is_documented_behind_itself() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    top = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    schema = import_module("json").loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert {line.partition(":")[0] for line in top} == set(schema["properties"])


def test_controllers_are_not_put_on_an_empty_dir() -> None:
    values = ("--set", "nameserver.persistence.enabled=false,nameserver.replicas=3,broker.replicas=3")
    done = subprocess.run(
        [HELM, "template", "mq", str(CHART), *values], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "nameserver.persistence.enabled=false with broker.replicas above 1" in done.stderr


def test_the_grpc_port_is_open_where_it_is_enabled() -> None:
    """At the pods, their Service, the Services outside, the NetworkPolicy and in the broker's settings, or nowhere."""
    for enabled in ("true", "false"):
        manifests = rendered(
            "--set", f"grpc.enabled={enabled},networkPolicy.enabled=true,external.mode=nodePort,external.grpcNodePortFirst=30700"
        )  # fmt: skip
        text = "".join(str(each) for each in manifests if "nameserver" not in each["metadata"]["name"])
        assert ("grpcServerPort=8081" in text, "grpcServerPort=0" in text) == (
            enabled == "true",
            enabled == "false",
        )
        services = [
            each["metadata"]["name"]
            for each in manifests
            if each["kind"] == "Service" and any(port["port"] == 8081 for port in each["spec"]["ports"])
        ]
        (policy,) = (
            each["spec"]["ingress"][0]["ports"]
            for each in manifests
            if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("broker")
        )
        opened = [
            port["containerPort"]
            for each in sets(manifests).values()
            for port in each["template"]["spec"]["containers"][0]["ports"]
            if port["name"] == "grpc"
        ]
        if enabled == "true":
            assert services == ["mq-aerobee-brokers", "mq-aerobee-broker-0-0"]
            assert opened == [8081]
        else:
            assert (services, opened) == ([], [])
        assert ({"port": 8081} in policy) == (enabled == "true")


def test_a_proxy_is_a_deployment_behind_one_service() -> None:
    """It starts with what the chart writes, and its pods sign with the Secret."""
    manifests = rendered(
        "--set", "proxy.enabled=true,proxy.existingSecret=keys,config.proxy.aclEnable=true,networkPolicy.enabled=true"
    )  # fmt: skip
    named = {each["kind"]: each for each in manifests if each["metadata"]["name"] == "mq-aerobee-proxy"}
    assert set(named) == {"Service", "Deployment", "NetworkPolicy", "PodDisruptionBudget"}
    assert named["Service"]["spec"]["selector"] == named["Deployment"]["spec"]["selector"]["matchLabels"]
    (container,) = named["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"]} >= {"AEROBEE_ACCESS_KEY", "AEROBEE_SECRET_KEY"}
    opened = [port["port"] for rule in named["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]]
    assert opened == [port["containerPort"] for port in container["ports"]] == [8081, 5557]
    (written,) = (each["data"]["proxy.conf"] for each in manifests if "broker.conf" in each.get("data", {}))
    lines = [f"{key}={value.value}" for key, value in parse_properties(written, "proxy").items()]
    flags = [flag for flag in role_flags("proxy", {}, "mq-aerobee-proxy-0") if "=" in flag]
    found = proxy_settings(assignments=[*flags, *lines], environ={})
    assert found.access.acl_enable
    assert found.proxy.nameservers.endswith(":9876")
    assert (found.proxy.port, found.proxy.exporters) == (8081, {"PROM"})
    assert not any(each["metadata"]["name"].endswith("-proxy") for each in rendered())
