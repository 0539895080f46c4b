package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/pkg/errors"
)

var variable = regexp.MustCompile(`(?m)^\s*(?:- )?(\S+?)[:=] ?\$\{([A-Z0-9_]+):=([^}]*)\}`)

func variables() ([][]string, error) {
	content, err := os.ReadFile("config/manager/manager.yaml")
	if err != nil {
		return nil, errors.Wrap(err, "reading the manifests")
	}
	var rows [][]string
	for _, match := range variable.FindAllStringSubmatch(string(content), -1) {
		rows = append(rows, []string{code(match[2]), code(strings.TrimSpace(match[3])), code(match[1])})
	}
	if count := strings.Count(string(content), ":="); count != len(rows)+1 { // one is in a comment
		return nil, errors.Errorf("%d of %d variables are understood", len(rows), count-1)
	}
	return rows, nil
}

var (
	flag         = regexp.MustCompile(`^ +(?:-\w, )?--(\S+)(?: \S+)?\s{2,}(.*)$`)
	flagDefault  = regexp.MustCompile(`^(.*?) ?\(default (.*)\)$`)
	flagContinue = regexp.MustCompile(`^ {20,}(\S.*)$`)
)

// flags returns the flags that the manager prints.
func flags() ([][]string, error) {
	output, err := exec.Command("go", "run", "./cmd/manager", "--help").CombinedOutput()
	if len(output) == 0 {
		return nil, errors.Wrap(err, "asking the manager for its flags")
	}
	var rows [][]string
	for line := range strings.SplitSeq(string(output), "\n") {
		if match := flag.FindStringSubmatch(line); match != nil {
			rows = append(rows, []string{code("--" + match[1]), "", match[2]})
		} else if match := flagContinue.FindStringSubmatch(line); match != nil && len(rows) > 0 {
			rows[len(rows)-1][2] += " " + match[1]
		}
	}
	for _, row := range rows {
		if match := flagDefault.FindStringSubmatch(row[2]); match != nil {
			row[1], row[2] = code(strings.Trim(match[2], `"`)), match[1]
		}
	}
	return rows, nil
}
