// Command kube is etcd and Kubernetes' daemons in one program, chosen by its first argument: they share most of their packages, and
// linking is a large part of the build.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Making a command registers its flags in a set that all share, so only the one that is wanted is made.
var daemons = map[string]func() *cobra.Command{
	"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
	"kube-controller-manager": func() *cobra.Command { return manager.NewControllerManagerCommand() },
	"kube-proxy":              func() *cobra.Command { return proxy.NewProxyCommand() },
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "kube DAEMON [FLAGS]")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	makeDaemon, known := daemons[name]
	if !known {
		fmt.Fprintln(os.Stderr, "kube: no daemon is called", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(makeDaemon()))
}
