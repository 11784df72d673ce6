package lifecycle

import (
	"strings"
	"unicode/utf8"
)

// Clean replaces invalid UTF-8 and control characters other than tab and newline with U+FFFD (events, Bounds).
func Clean(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Map(func(r rune) rune {
		if (r < 0x20 && r != '\t' && r != '\n') || (r >= 0x7f && r <= 0x9f) {
			return utf8.RuneError
		}
		return r
	}, text)
}

// split cuts text into pieces of at most limit bytes (4 or more), no character in two of them (rule 8).
func split(text string, limit int) []string {
	var pieces []string
	for len(text) > limit {
		end := limit
		for !utf8.RuneStart(text[end]) {
			end--
		}
		pieces = append(pieces, text[:end])
		text = text[end:]
	}
	return append(pieces, text)
}
