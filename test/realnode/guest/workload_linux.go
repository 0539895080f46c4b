package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/errors"

	"github.com/capnm/cluster-api-node-maintenance/test/realnode/spec"
)

// pause waits for SIGTERM. It is process 1 of the Pod's sandbox.
func pause() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	return nil
}

// runApp runs until SIGTERM, and then for the duration of its argument. With "forever" it ignores SIGTERM, and with spec.UntilReleased it
// ends when the test releases it. It records each step in the journal.
func runApp(args []string) error {
	if len(args) > 0 && args[0] == "note" { // a preStop hook
		return record(args[1])
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if port := os.Getenv("HOOK_PORT"); port != "" {
		if err := serveHook(port); err != nil {
			return err
		}
	}
	if err := record("started"); err != nil {
		return err
	}
	<-signals
	if err := record("SIGTERM"); err != nil {
		return err
	}
	if len(args) > 0 {
		if err := last(args[0]); err != nil {
			return err
		}
	}
	return record("ended")
}

// last returns when the process may end after SIGTERM.
func last(until string) error {
	switch until {
	case "forever":
		select {}
	case spec.UntilReleased:
		for released := spec.Released(os.Getenv("JOURNAL"), os.Getenv("POD_NAME")); ; time.Sleep(20 * time.Millisecond) {
			if _, err := os.Stat(released); err == nil {
				return nil
			}
		}
	}
	lasts, err := time.ParseDuration(until)
	if err != nil {
		return errors.Wrap(err, "parsing the duration")
	}
	time.Sleep(lasts)
	return nil
}

// serveHook records each HTTP request, which is a preStop hook.
func serveHook(port string) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return errors.Wrap(err, "listening for the hook")
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if err := record("preStop"); err != nil {
			log.Print(err)
		}
	})}
	go func() { log.Print(server.Serve(listener)) }()
	return nil
}

func record(what string) error {
	file, err := os.OpenFile(os.Getenv("JOURNAL"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrap(err, "opening the journal")
	}
	defer func() { _ = file.Close() }()
	// One write, so that lines of several Pods do not mix.
	line := fmt.Sprintf("%d %s %s\n", time.Now().UnixNano(), os.Getenv("POD_NAME"), strings.TrimSpace(what))
	if _, err := file.WriteString(line); err != nil {
		return errors.Wrap(err, "writing the journal")
	}
	return nil
}
