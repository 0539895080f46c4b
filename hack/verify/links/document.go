package main

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// repository is the URL of the files of this repository.
const repository = "https://github.com/capnm/cluster-api-node-maintenance/blob/main/"

// document is the links and anchors of a Markdown file, or the links of a YAML file.
type document struct {
	links   []link
	anchors map[string]bool
}

type link struct {
	line   int
	target string
}

var (
	fence      = regexp.MustCompile("^\\s{0,3}(```+|~~~+)")
	heading    = regexp.MustCompile(`^\s{0,3}#{1,6}\s+(.+?)\s*#*\s*$`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	inlineLink = regexp.MustCompile(`\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?([^\s)>]*)>?[^)]*\)`)
	definition = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s+<?([^\s>]+)`)
	ownURL     = regexp.MustCompile(regexp.QuoteMeta(repository) + `[^\s"']*`)
	htmlAnchor = regexp.MustCompile(`<a\s+(?:name|id)="([^"]+)"`)
)

// parse finds links and anchors. It supports the subset of Markdown that this repository uses: fenced and inline code, headings
// that start with #, inline links and link definitions.
func parse(content string) document {
	d := document{anchors: map[string]bool{}}
	open := "" // the fence of the code block that we are in
	for i, text := range strings.Split(content, "\n") {
		if found := fence.FindStringSubmatch(text); found != nil {
			switch {
			case open == "":
				open = found[1]
			case strings.HasPrefix(found[1], open):
				open = ""
			}
			continue
		}
		if open == "" {
			d.parseLine(i+1, text)
		}
	}
	return d
}

// parseYAML finds the links to files of this repository, such as those of alerts to their runbooks.
func parseYAML(content string) document {
	var d document
	for i, text := range strings.Split(content, "\n") {
		for _, found := range ownURL.FindAllString(text, -1) {
			d.links = append(d.links, link{i + 1, found})
		}
	}
	return d
}

func (d *document) parseLine(line int, text string) {
	if found := heading.FindStringSubmatch(text); found != nil {
		d.addAnchor(slug(found[1]))
	}
	for _, found := range htmlAnchor.FindAllStringSubmatch(text, -1) {
		d.anchors[found[1]] = true
	}
	if found := definition.FindStringSubmatch(text); found != nil {
		d.links = append(d.links, link{line, found[1]})
		return
	}
	d.addLinks(line, inlineCode.ReplaceAllString(text, ""))
}

// addLinks also finds the image of a link: [![text](image)](target).
func (d *document) addLinks(line int, text string) {
	for _, found := range inlineLink.FindAllStringSubmatch(text, -1) {
		d.links = append(d.links, link{line, found[2]})
		d.addLinks(line, found[1])
	}
}

// addAnchor numbers headings of the same text as GitHub does.
func (d *document) addAnchor(anchor string) {
	unique := anchor
	for n := 1; d.anchors[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", anchor, n)
	}
	d.anchors[unique] = true
}

// slug is the anchor that GitHub gives a heading.
func slug(heading string) string {
	heading = inlineLink.ReplaceAllString(heading, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, heading)
}

// resolve returns why a link is invalid, or an empty string if it is valid or leads out of this repository.
func resolve(files fs.FS, documents map[string]document, from, target string) string {
	if own, found := strings.CutPrefix(target, repository); found {
		from, target = "", own
	}
	parsed, err := url.Parse(target)
	if err != nil {
		return "it is no URL"
	}
	if parsed.Scheme != "" || parsed.Host != "" {
		return ""
	}
	to := from
	switch {
	case strings.HasPrefix(parsed.Path, "/"):
		return "make it relative to the file that it is in"
	case parsed.Path != "":
		to = path.Join(path.Dir(from), parsed.Path)
	}
	if _, err := fs.Stat(files, to); err != nil {
		return "there is no such file"
	}
	if parsed.Fragment == "" {
		return ""
	}
	if document, ok := documents[to]; ok && !document.anchors[parsed.Fragment] {
		return "there is no such heading"
	}
	return ""
}

func sortedNames(documents map[string]document) []string {
	return slices.Sorted(maps.Keys(documents))
}
