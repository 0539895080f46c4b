// Command app is the application of the end-to-end tests, and the pause container of their Pods. Without flags it waits for SIGTERM.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	address := flag.String("serve", "", "address on which to answer HTTP requests with the host's name")
	grace := flag.Duration("grace", 0, "how long to continue after SIGTERM, as a server does that waits until clients know its replacement")
	stubborn := flag.Bool("stubborn", false, "ignore SIGTERM")
	flag.Parse()

	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGTERM, syscall.SIGINT)
	if *address != "" {
		go serve(*address)
	}
	for range stopped {
		if !*stubborn {
			time.Sleep(*grace)
			return
		}
	}
}

func serve(address string) {
	host, _ := os.Hostname()
	server := &http.Server{Addr: address, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, host)
	})}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
