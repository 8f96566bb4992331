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

class Filter {
 public:
  Filter() = default;  // matches everything, as does an empty text
  // Throws UsageError that shows the text with a caret under the mistake. A value outside those
  // known for its key is one.
  explicit Filter(std::string_view text, const KnownNames& known = {});
  bool matches(const Point& point) const { return !condition_ || condition_(point); }

 private:
  std::function<bool(const Point&)> condition_;
};

std::vector<std::string> filter_keys();

}  // namespace longnet
