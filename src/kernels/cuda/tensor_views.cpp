#include "kernels/cuda/tensor_views.h"

#include <algorithm>
#include <compare>
#include <map>
#include <tuple>

#include "core/check.h"

namespace longnet {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a stride

// A view in the making, and the runs in it, in the order of its dimensions.
struct Part {
  TensorView view;
  std::vector<size_t> runs;
};

auto shape_of(const RowRun& run) { return std::pair(run.rows, run.row_stride); }

bool alike(const TensorView& a, const TensorView& b) {
  return shape_of(a.base) == shape_of(b.base) && std::ranges::equal(a.count, b.count) &&
         std::ranges::equal(a.step, b.step);
}

// Elements from one part to the next of the same form; 0 when they cannot be one dimension.
int64_t step_between(const Part& a, const Part& b) {
  if (!alike(a.view, b.view)) return 0;
  const int64_t bytes =
      reinterpret_cast<intptr_t>(b.view.base.first) - reinterpret_cast<intptr_t>(a.view.base.first);
  return bytes > 0 && bytes < kMostBytes && bytes % 16 == 0 ? bytes / 2 : 0;
}

// Neighbours at equal distances become one part that is longer in `dimension`.
std::vector<Part> joined(std::vector<Part> parts, int dimension) {
  std::vector<Part> out;
  for (size_t i = 0; i < parts.size();) {
    size_t count = 1;
    int64_t step = 0;
    for (; i + count < parts.size(); ++count) {
      const int64_t next = step_between(parts[i + count - 1], parts[i + count]);
      if (next == 0 || (count > 1 && next != step)) break;
      step = next;
    }
    Part whole = std::move(parts[i]);
    for (size_t k = 1; k < count; ++k)
      whole.runs.insert(whole.runs.end(), parts[i + k].runs.begin(), parts[i + k].runs.end());
    whole.view.count[dimension] = int64_t(count);
    whole.view.step[dimension] = step;
    out.push_back(std::move(whole));
    i += count;
  }
  return out;
}

}  // namespace

TensorViews tensor_views(std::span<const RowRun> runs) {
  const auto key = [&](size_t i) {
    return std::tuple(runs[i].rows, runs[i].row_stride, reinterpret_cast<uintptr_t>(runs[i].first));
  };
  std::map<decltype(key(0)), size_t> distinct;  // ascending addresses within a shape
  for (size_t i = 0; i < runs.size(); ++i) {
    check(runs[i].rows > 0, "a run of ", runs[i].rows, " rows has no view");
    distinct.emplace(key(i), i);
  }
  std::vector<Part> parts;
  for (const auto& [unused, i] : distinct) parts.push_back({{.base = runs[i]}, {i}});
  for (int dimension = 0; dimension < 3; ++dimension) parts = joined(std::move(parts), dimension);

  TensorViews out;
  std::map<decltype(key(0)), ViewPlace> places;
  for (const Part& part : parts) {
    const auto* const count = part.view.count;
    for (size_t i = 0; i < part.runs.size(); ++i) {
      const auto at = int64_t(i);
      places[key(part.runs[i])] = {.view = int32_t(out.views.size()),
                                   .at = {int32_t(at % count[0]), int32_t(at / count[0] % count[1]),
                                          int32_t(at / (count[0] * count[1]))}};
    }
    out.views.push_back(part.view);
  }
  for (size_t i = 0; i < runs.size(); ++i) out.places.push_back(places.at(key(i)));
  return out;
}

}  // namespace longnet
