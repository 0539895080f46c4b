// Package tracing records what drains wait for, and counts the Pods that they leave without a place. When a part of a drain ends, the
// Recorder counts its waits in metrics, and the Exporter sends its spans to an OpenTelemetry collector, if tracing is configured.
//
// The Recorder keeps the Pods that are being evacuated in memory, and nothing that has ended. It never delays a controller: spans wait in a
// queue of limited length, and the Exporter drops those that exceed it.
package tracing
