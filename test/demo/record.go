package main

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pkg/errors"
)

// outDir is where the demo writes its report.
const outDir = "out/demo"

// record records all drains with the kubectl plugin until the returned function is called, which writes the report.
func (p *play) record(ctx context.Context) (report func() error, err error) {
	recording, page := filepath.Join(outDir, "recording.jsonl"), filepath.Join(outDir, "report.html")
	if err := os.MkdirAll(outDir, 0o750); err != nil {
		return nil, errors.Wrap(err, "creating a directory for the report")
	}
	if err := os.Remove(recording); err != nil && !os.IsNotExist(err) {
		return nil, errors.Wrap(err, "removing an earlier recording")
	}
	recorder := p.plugin(ctx, "status", "--watch", "--record", recording)
	if err := recorder.Start(); err != nil {
		return nil, errors.Wrap(err, "starting the recording")
	}
	return func() error {
		_ = recorder.Process.Signal(syscall.SIGTERM)
		_ = recorder.Wait() // 130, as after Ctrl-C
		output, err := p.plugin(ctx, "report", recording).Output()
		if err != nil {
			return errors.Wrap(err, "writing the report")
		}
		if err := os.WriteFile(page, output, 0o600); err != nil {
			return errors.Wrap(err, "writing the report")
		}
		p.say("\nThe report of both acts, for a browser: %s", page)
		return nil
	}, nil
}
