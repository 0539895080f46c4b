package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// passage is text of a file. What is not prose is blanked out, so that each byte keeps its place.
type passage struct {
	offset int
	text   string
}

type extractor func(content []byte) ([]passage, error)

// extractorFor returns nil for files that are not checked.
func extractorFor(name string) extractor {
	switch {
	case strings.HasPrefix(path.Base(name), "zz_generated"):
		return nil
	case path.Ext(name) == ".go":
		return fromGo
	case path.Ext(name) == ".md":
		return fromMarkdown
	case path.Base(name) == "Makefile", slices.Contains([]string{".yaml", ".yml", ".sh", ".mk", ".tpl"}, path.Ext(name)):
		return fromText
	}
	return nil
}

var (
	fencedCode  = regexp.MustCompile("(?ms)^ *```.*?\n *```")
	inlineCode  = regexp.MustCompile("`[^`\n]*`")
	lineComment = regexp.MustCompile(`(?m)^[ \t]*(//|#|>)+`)
)

// fromGo returns comments and string literals, except import paths.
func fromGo(content []byte) ([]passage, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var passages []passage
	add := func(node ast.Node, transform func(string) string) {
		from, to := files.Position(node.Pos()).Offset, files.Position(node.End()).Offset
		passages = append(passages, passage{offset: from, text: transform(string(content[from:to]))})
	}
	for _, comment := range file.Comments {
		add(comment, withoutMarkers)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if node.Kind == token.STRING {
				add(node, func(text string) string { return text })
			}
		}
		return true
	})
	return passages, nil
}

// fromMarkdown blanks inline code, but not fenced blocks.
func fromMarkdown(content []byte) ([]passage, error) {
	text, end := "", 0
	for _, at := range fencedCode.FindAllIndex(content, -1) {
		text += withoutMarkers(string(content[end:at[0]])) + string(content[at[0]:at[1]])
		end = at[1]
	}
	return []passage{{text: text + withoutMarkers(string(content[end:]))}}, nil
}

func fromText(content []byte) ([]passage, error) {
	return []passage{{text: withoutMarkers(string(content))}}, nil
}

// withoutMarkers blanks inline code and the markers of comments and quotes, so that phrases continue on the next line.
func withoutMarkers(text string) string {
	return lineComment.ReplaceAllStringFunc(inlineCode.ReplaceAllStringFunc(text, blank), blank)
}

func blank(text string) string { return strings.Repeat(" ", len(text)) }
