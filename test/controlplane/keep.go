package controlplane

// KeepLogs keeps the logs when the control plane stops.
func (c *ControlPlane) KeepLogs() { c.failed = true }
