package controlplane

// KeepLogs leaves the logs behind when the control plane stops.
func (c *ControlPlane) KeepLogs() { c.failed = true }
