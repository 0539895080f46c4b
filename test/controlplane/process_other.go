//go:build unix && !linux

package controlplane

import (
	"os/exec"
	"syscall"
)

// startBound starts a child. Only Linux can stop it with this process; elsewhere a killed test process
// leaves its control planes running.
func startBound(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}
