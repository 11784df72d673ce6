package sqlite

import (
	"fmt"
	"sort"
	"strings"

	"github.com/FerretDB/FerretDB/internal/backends/sqlite/metadata"
	"github.com/FerretDB/FerretDB/internal/handler/sjson"
	"github.com/FerretDB/FerretDB/internal/types"
	"github.com/FerretDB/FerretDB/internal/util/iterator"
	"github.com/FerretDB/FerretDB/internal/util/must"
)

// comparisons are the operators that SQLite answers as FerretDB does, for strings and whole numbers.
var comparisons = map[string]string{"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}

// where returns as much of a filter as the indexes of a table answer. FerretDB looks at what is found once more, so this may leave
// out conditions, but may not turn away what meets the filter.
func where(filter *types.Document) (string, []any) {
	var conditions []string
	var args []any
	compare := func(field, operator string, value any) {
		if sign, known := comparisons[operator]; known && isScalar(value) {
			conditions = append(conditions, place(field)+" "+sign+" ?")
			args = append(args, value)
		}
	}
	for _, field := range fieldsOf(filter) {
		value := must.NotFail(filter.Get(field))
		operators, isDocument := value.(*types.Document)
		switch {
		case field == "_id":
			if condition, wanted := ids(value); condition != "" {
				conditions, args = append(conditions, condition), append(args, wanted...)
			}
		case strings.HasPrefix(field, "$") || strings.Contains(field, "."):
			// no field of the document itself
		case isDocument:
			for _, operator := range fieldsOf(operators) {
				compare(field, operator, must.NotFail(operators.Get(operator)))
			}
		default:
			compare(field, "$eq", value)
		}
	}
	if len(conditions) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(conditions, " AND "), args
}

// ids is for keys, which are compared as JSON text: for that there always is an index, and it knows equality alone.
func ids(value any) (string, []any) {
	wanted := []any{value}
	if operators, isDocument := value.(*types.Document); isDocument {
		if listed, err := operators.Get("$in"); err == nil {
			array, isArray := listed.(*types.Array)
			if !isArray {
				return "", nil
			}
			wanted = must.NotFail(iterator.ConsumeValues(array.Iterator()))
		} else if equal, err := operators.Get("$eq"); err == nil {
			wanted = []any{equal}
		} else {
			return "", nil
		}
	}
	marks := make([]string, len(wanted))
	args := make([]any, len(wanted))
	for i, one := range wanted {
		if _, isString := one.(string); !isString {
			return "", nil
		}
		marks[i], args[i] = "?", string(must.NotFail(sjson.MarshalSingleValue(one)))
	}
	return fmt.Sprintf("%s IN (%s)", metadata.IDColumn, strings.Join(marks, ", ")), args
}

func isScalar(value any) bool {
	switch value.(type) {
	case string, int32, int64:
		return true
	}
	return false
}

// place is what an index over a field is made of, too: see the change of the registry.
func place(field string) string {
	return metadata.DefaultColumn + "->>'" + strings.ReplaceAll(field, "'", "''") + "'"
}

func fieldsOf(document *types.Document) []string {
	fields := append([]string(nil), document.Keys()...)
	sort.Strings(fields)
	return fields
}
