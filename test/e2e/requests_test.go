package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
)

// requests is a client that requests a URL all the time, each time with a new connection.
type requests struct {
	cancel context.CancelFunc
	done   chan struct{}

	// The others are read after done.
	answered int
	failures []string
	last     time.Time     // of an answer
	longest  time.Duration // without an answer
}

// poll starts a client.
func poll(client *http.Client, url string) *requests {
	ctx, cancel := context.WithCancel(context.Background())
	r := &requests{cancel: cancel, done: make(chan struct{}), last: time.Now()}
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
	if err != nil {
		r.failures = append(r.failures, time.Now().Format("15:04:05.000 ")+err.Error())
		return
	}
	r.answered++
	now := time.Now()
	r.last, r.longest = now, max(r.longest, now.Sub(r.last))
}

// expectAnswered stops the client and expects that every request was answered.
func (r *requests) expectAnswered(server string) {
	GinkgoHelper()
	r.stop(server)
	Expect(r.failures).To(BeEmpty())
	Expect(r.answered).To(BeNumerically(">", 100))
}

// expectAvailable stops the client and expects that it never waited longer than outage for an answer. Connections to a server that
// terminates fail, and clients of API servers repeat such requests.
func (r *requests) expectAvailable(server string, outage time.Duration) {
	GinkgoHelper()
	r.stop(server)
	Expect(r.longest).To(BeNumerically("<", outage), strings.Join(r.failures, "\n"))
	Expect(r.answered).To(BeNumerically(">", 100))
}

// requests returns how many requests the client has sent.
func (r *requests) requests() int { return r.answered + len(r.failures) }

func (r *requests) stop(server string) {
	r.cancel()
	<-r.done
	AddReportEntry("requests to "+server, fmt.Sprintf("%d answered, %d failed, longest time without an answer %s\n%s",
		r.answered, len(r.failures), r.longest.Round(time.Millisecond), strings.Join(r.failures, "\n")))
}
