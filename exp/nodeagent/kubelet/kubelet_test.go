package kubelet_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/kubelet"
	"github.com/capnm/cluster-api-node-maintenance/exp/nodeagent/shutdown"
)

// podsOf returns what the agent learns from a kubelet that reports these Pods, and the memory that it allocates for that.
func podsOf(t *testing.T, list ...string) (pods map[string]shutdown.Known, allocated uint64, err error) {
	t.Helper()
	g := NewWithT(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, part := range list {
			_, _ = io.WriteString(w, part)
		}
	}))
	defer server.Close()
	address, err := url.Parse(server.URL)
	g.Expect(err).NotTo(HaveOccurred())
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	g.Expect(err).NotTo(HaveOccurred())
	token := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(token, []byte("token"), 0o600)).To(Succeed())
	client := kubelet.New(token)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	pods, err = client.Pods(t.Context(), int32(port))
	runtime.ReadMemStats(&after)
	return pods, after.TotalAlloc - before.TotalAlloc, err
}

func TestPods(t *testing.T) {
	t.Run("S67: reads priorities and sidecars", func(t *testing.T) {
		g := NewWithT(t)
		pods, _, err := podsOf(t, `{"kind":"PodList","metadata":{"items":[1]},"items":[
			{"metadata":{"uid":"a"},"spec":{"priority":5,"initContainers":[{"name":"setup"},{"name":"proxy","restartPolicy":"Always"}]}},
			{"metadata":{"uid":"b"},"spec":{"priorityClassName":"system-node-critical"}}],"more":null}`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(Equal(map[string]shutdown.Known{"a": {Priority: 5, Sidecars: []string{"proxy"}}, "b": {Priority: 2_000_001_000}}))
	})
	t.Run("S67: a kubelet without Pods, or without a list of them", func(t *testing.T) {
		g := NewWithT(t)
		for list, fails := range map[string]bool{
			`{}`: false, `{"items":null}`: false, `{"items":[]}`: false, `{"items":[{"metadata":{"uid":"a"}}`: true, `{"items":["a"]}`: true, `{`: true, ``: true,
		} {
			pods, _, err := podsOf(t, list)
			g.Expect(err != nil).To(Equal(fails), list)
			g.Expect(pods).To(BeEmpty(), list)
		}
	})
	t.Run("S83: the agent keeps neither what is in large Pods nor all sidecars of a Pod", func(t *testing.T) {
		g := NewWithT(t)
		var env, sidecars strings.Builder
		for i := range 20_000 {
			fmt.Fprintf(&env, `{"name":"E%d","value":"value of the variable"},`, i)
		}
		for i := range 100 {
			fmt.Fprintf(&sidecars, `{"name":"sidecar-%d","restartPolicy":"Always"},`, i)
		}
		list := []string{fmt.Sprintf(`{"items":[{"metadata":{"uid":"first"},"spec":{"initContainers":[%s{}]}}`, sidecars.String())}
		for i := range 10 {
			list = append(list, fmt.Sprintf(`,{"metadata":{"uid":"%d"},"spec":{"containers":[{"env":[%s{}]}]}}`, i, env.String()))
		}
		pods, allocated, err := podsOf(t, append(list, "]}")...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveLen(11))
		g.Expect(pods["first"].Sidecars).To(HaveLen(10))
		g.Expect(allocated).To(BeNumerically("<", 8<<20), "the list has more")
	})
	t.Run("S83: the agent keeps nothing of Pods that have finished, of which a user can leave any number on a Node", func(t *testing.T) {
		g := NewWithT(t)
		var list strings.Builder
		for i, phase := range []string{"Pending", "Running", "Unknown", "Succeeded", "Failed", ""} {
			fmt.Fprintf(&list, `,{"metadata":{"uid":"%d"},"spec":{"priority":%d},"status":{"phase":%q}}`, i, i, phase)
		}
		pods, _, err := podsOf(t, `{"items":[`+list.String()[1:]+`]}`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(Equal(map[string]shutdown.Known{"0": {}, "1": {Priority: 1}, "2": {Priority: 2}, "5": {Priority: 5}}))
	})
}
