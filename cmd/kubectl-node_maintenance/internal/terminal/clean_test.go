package terminal_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	. "github.com/onsi/gomega"

	"github.com/capnm/cluster-api-node-maintenance/cmd/kubectl-node_maintenance/internal/terminal"
)

func TestClean(t *testing.T) {
	const limit = 60
	for name, test := range map[string]struct{ in, want string }{
		"keeps text":                             {"default/web-1: 58 healthy Pods required", "default/web-1: 58 healthy Pods required"},
		"removes escape sequences":               {"a\x1b[31mred\x1b]0;title\x07", "a\uFFFD[31mred\uFFFD]0;title\uFFFD"},
		"removes C1 controls":                    {"a\u009b31mb", "a\uFFFD31mb"},
		"removes characters that reverse text":   {"a\u202Etxt.exe\u2066b", "a\uFFFDtxt.exe\uFFFDb"},
		"removes invisible characters":           {"a\u200Bb\uFEFFc", "a\uFFFDb\uFFFDc"},
		"removes stacked marks":                  {"a\u0301", "a\uFFFD"},
		"puts several lines on one":              {"a\n\tb\r\n c", "a b c"},
		"replaces line and paragraph separators": {"a\u2028b\u2029c", "a b c"},
		"replaces invalid UTF-8":                 {"a\xffb", "a\uFFFDb"},
		"cuts long text":                         {strings.Repeat("ä", limit+1), strings.Repeat("ä", limit-1) + "…"},
	} {
		t.Run("K6: "+name, func(t *testing.T) {
			NewWithT(t).Expect(terminal.Clean(test.in, limit)).To(Equal(test.want))
		})
	}
}

// FuzzClean asserts that nothing that controls a terminal remains.
func FuzzClean(f *testing.F) {
	f.Add("web\x1b[2J\u202e\u009b", 10)
	f.Add("a\xff\u0301\n", 1)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = 1 + int(uint(limit)%10_000)
		clean := terminal.Clean(text, limit)
		if !utf8.ValidString(clean) {
			t.Errorf("%q is not UTF-8", clean)
		}
		if n := utf8.RuneCountInString(clean); n > limit {
			t.Errorf("%q has %d characters, more than %d", clean, n, limit)
		}
		for _, r := range clean {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
				t.Errorf("%q has %U", clean, r)
			}
		}
		if again := terminal.Clean(clean, limit); again != clean {
			t.Errorf("%q becomes %q when it is cleaned a second time", clean, again)
		}
	})
}
