//go:build unix && !linux

package controlplane

import (
	"os/exec"
	"syscall"
)

// startBound starts a child. Only Linux can bind its life to ours; elsewhere a test process
// that is killed leaves its control planes running.
func startBound(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}
