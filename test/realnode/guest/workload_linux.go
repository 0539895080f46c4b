package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"
)

// pause does nothing until it is told to end. It is process 1 of its Pod's sandbox.
func pause() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	return nil
}

// runApp runs until SIGTERM, and then for as long as its argument says; "forever" ignores it. What happens to it, it appends
// to the file of the environment variable JOURNAL, one line each: the time in nanoseconds, the Pod's name, what.
func runApp(args []string) error {
	if len(args) > 0 && args[0] == "note" { // a preStop hook
		return record(args[1])
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if err := record("started"); err != nil {
		return err
	}
	<-signals
	if err := record("SIGTERM"); err != nil {
		return err
	}
	if len(args) > 0 {
		if args[0] == "forever" {
			select {}
		}
		lasts, err := time.ParseDuration(args[0])
		if err != nil {
			return errors.Wrap(err, "how long it ends")
		}
		time.Sleep(lasts)
	}
	return record("ended")
}

func record(what string) error {
	file, err := os.OpenFile(os.Getenv("JOURNAL"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrap(err, "opening the journal")
	}
	defer func() { _ = file.Close() }()
	// One write, so that lines of several Pods don't mix; and to the disk, since the power may be cut.
	line := fmt.Sprintf("%d %s %s\n", time.Now().UnixNano(), os.Getenv("POD_NAME"), strings.TrimSpace(what))
	if _, err := file.WriteString(line); err != nil {
		return errors.Wrap(err, "writing the journal")
	}
	return nil
}
