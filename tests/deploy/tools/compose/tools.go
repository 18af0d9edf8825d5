// Package tools pins docker compose: scripts/setup-docker builds its command out of the Go module proxy.
package tools

import (
	_ "github.com/docker/compose/v2/cmd/compose"
)
