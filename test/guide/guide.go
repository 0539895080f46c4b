// Package guide reads the manifests and commands of the guides, so that tests apply and run exactly what users read.
package guide

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pkg/errors"
)

// Block is a fenced block of a guide.
type Block struct {
	Language string // such as yaml or sh
	Content  string
}

// block is a fenced block, which is indented in a list.
var block = regexp.MustCompile("(?ms)^( *)```(\\w+)\n(.*?\n) *```$")

// Section returns the blocks of the section of a guide in docs/guide, without their indentation.
func Section(root, file, heading string) ([]Block, error) {
	content, err := os.ReadFile(filepath.Join(root, "docs", "guide", file))
	if err != nil {
		return nil, errors.Wrap(err, "reading a guide")
	}
	_, section, found := strings.Cut(string(content), "\n## "+heading+"\n")
	if !found {
		return nil, errors.Errorf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var blocks []Block
	for _, match := range block.FindAllStringSubmatch(section, -1) {
		var text strings.Builder
		for line := range strings.Lines(match[3]) {
			text.WriteString(strings.TrimPrefix(line, match[1]))
		}
		blocks = append(blocks, Block{Language: match[2], Content: text.String()})
	}
	return blocks, nil
}
