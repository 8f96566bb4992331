// Conditions on points, for --filter and for exclude.where.
//
//   algorithm==dilated && seq_len<=1M || !(ranks > 4)
//
// key op value, with == != < <= > >=, joined by && || ! and parentheses (&& binds tighter). Keys
// are the names of a result's params, and id. Numbers may carry K, M, B; strings may be bare or
// quoted; a boolean key may stand alone.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/axes.h"

namespace longnet {

using Filter = std::function<bool(const Point&)>;

// Parses a filter; an empty text matches every point. Throws UsageError with a caret under the
// mistake, also for a value that is not known for its key.
Filter parse_filter(std::string_view text, const KnownNames& known = {});

std::vector<std::string> filter_keys();

}  // namespace longnet
