package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

// requests is a client that requests a URL all the time, each time with a new connection.
type requests struct {
	cancel context.CancelFunc
	done   chan struct{}

	mutex    sync.Mutex
	answered int
	failures []string
}

// poll starts a client.
func poll(client *http.Client, url string) *requests {
	ctx, cancel := context.WithCancel(context.Background())
	r := &requests{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		ticks := time.NewTicker(50 * time.Millisecond)
		defer ticks.Stop()
		for ctx.Err() == nil {
			err := request(ctx, client, url)
			if ctx.Err() == nil {
				r.add(err)
			}
			<-ticks.C
		}
	}()
	return r
}

func request(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

func (r *requests) add(err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err != nil {
		r.failures = append(r.failures, time.Now().Format("15:04:05.000 ")+err.Error())
		return
	}
	r.answered++
}

// expectAnswered stops the client, and expects that every request was answered.
func (r *requests) expectAnswered(server string) {
	GinkgoHelper()
	answered, failures := r.stop()
	AddReportEntry("requests to "+server, fmt.Sprintf("%d answered, %d failed", answered, len(failures)))
	Expect(failures).To(BeEmpty())
	Expect(answered).To(BeNumerically(">", 100))
}

// stop stops the client and returns how many requests were answered, and why others failed.
func (r *requests) stop() (answered int, failures []string) {
	r.cancel()
	<-r.done
	return r.answered, r.failures
}
