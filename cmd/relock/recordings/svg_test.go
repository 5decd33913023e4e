package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDraw_IsAPictureWithAllLinesInOrder(t *testing.T) {
	picture := draw("A & B", "ls", []line{lineOf(time.Second, "\x1b[32mheld  <one>\x1b[0m"), lineOf(3*time.Second, "free")})
	texts := textsOf(t, picture)
	require.Equal(t, []string{"$ ls", "held  <one>", "free"}, texts)
	require.Contains(t, picture, `class="s32"`)
	require.Contains(t, picture, "9.09%{opacity:0}", "the first after 1 s of 11 s")
	require.Contains(t, picture, "prefers-color-scheme:dark")
}

func TestDraw_WrapsLongLinesBetweenWords(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 50))
	rows := textsOf(t, draw("", "ls", []line{lineOf(time.Second, long)}))[1:]
	require.Greater(t, len(rows), 2)
	var words []string
	for _, row := range rows {
		require.LessOrEqual(t, len(row), columns)
		words = append(words, strings.Fields(row)...)
	}
	require.Equal(t, long, strings.Join(words, " "))
}

// textsOf returns the texts of a picture, which has to be well-formed.
func textsOf(t *testing.T, picture string) (texts []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(picture))
	inText := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			inText = e.Name.Local == "text"
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				texts = append(texts, string(e))
			}
		}
	}
}
