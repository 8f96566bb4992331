// Cuts the keys of several runs into panels of at most kPanelKeys keys, across the borders of runs.
//
//   runs    |--- 100 keys ---|------ 150 keys ------|
//   panels  |------ 128 keys -----|---- 122 keys ---|   the first has segments of 100 and 28 keys
//
// Causal: within a segment positions ascend, so that a query sees a prefix of it. Keys that even
// the last query does not see are cut off beforehand; the order of the runs does not matter.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/attention_kernel.h"

namespace longnet {

// K and V of a panel as fp32: 64 KB at d = 64, 256 KB at 256. Against 64 keys, half the additions
// to O and l per key (+1 % of the peak); 256 keys gain another 1 %, but their sums round 15 %
// worse.
inline constexpr int64_t kPanelKeys = 128;
inline constexpr int64_t kAllTokens = std::numeric_limits<int64_t>::max();  // "no mask"

// Number of the `rows` positions first, first + step, ... that are <= token.
inline int64_t visible_rows(int64_t first, int64_t step, int64_t rows, int64_t token) {
  if (token == kAllTokens) return rows;
  if (rows == 0 || token < first) return 0;
  return rows == 1 ? 1 : std::min(rows, (token - first) / step + 1);
}

struct PanelSegment {
  int64_t first_token, token_step;
  int64_t begin, keys;  // the keys [begin, begin + keys) of the panel
};

using PanelRows = std::array<const std::byte*, kPanelKeys>;

struct KeyPanel {
  int64_t keys = 0, num_segments = 0;
  int64_t min_token = 0, max_token = 0;  // over all keys
  std::array<PanelSegment, kPanelKeys> segments;
  PanelRows k, v;  // rows of the storage dtype

  std::span<const PanelSegment> active() const { return {segments.data(), size_t(num_segments)}; }

  // One past the last key that a query at `token` sees; the keys before it may have gaps.
  int64_t visible_end(int64_t token) const {
    if (token >= max_token) return keys;
    int64_t end = 0;
    for (const PanelSegment& s : active()) {
      const int64_t rows = visible_rows(s.first_token, s.token_step, s.keys, token);
      if (rows > 0) end = s.begin + rows;
    }
    return end;
  }
};

// The keys [begin, end) of the runs of a task, counted over all runs.
struct KeyRange {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();
};

class KeyPanels {
 public:
  // Yields the keys of `runs` at positions <= last_token (kAllTokens: all) that `range` holds.
  KeyPanels(const KeyRuns& runs, int64_t element_bytes, int64_t last_token, KeyRange range = {})
      : runs_(runs), element_bytes_(element_bytes), last_token_(last_token), range_(range) {}

  // Fills `panel` with the next keys; false when there are none.
  bool next(KeyPanel& panel) {
    panel.keys = panel.num_segments = 0;
    panel.min_token = std::numeric_limits<int64_t>::max();
    panel.max_token = std::numeric_limits<int64_t>::min();
    while (run_ < runs_.size() && panel.keys < kPanelKeys) {
      const KvRun run = runs_[run_];
      const int64_t visible =
          std::min(visible_rows(run.first_token, run.token_step, run.rows, last_token_),
                   range_.end - keys_before_);
      row_ = std::max(row_, range_.begin - keys_before_);
      const int64_t take = std::min(kPanelKeys - panel.keys, visible - row_);
      if (take > 0) append(panel, run, take);
      if (row_ >= visible) {
        ++run_;
        row_ = 0;
        keys_before_ += run.rows;
      }
    }
    return panel.keys > 0;
  }

 private:
  void append(KeyPanel& panel, const KvRun& run, int64_t take) {
    const int64_t first = run.first_token + row_ * run.token_step;
    panel.segments[size_t(panel.num_segments++)] = {first, run.token_step, panel.keys, take};
    panel.min_token = std::min(panel.min_token, first);
    panel.max_token = std::max(panel.max_token, first + (take - 1) * run.token_step);
    const int64_t pitch = run.row_stride * element_bytes_;
    for (int64_t i = 0; i < take; ++i) {
      panel.k[size_t(panel.keys + i)] = static_cast<const std::byte*>(run.k) + (row_ + i) * pitch;
      panel.v[size_t(panel.keys + i)] = static_cast<const std::byte*>(run.v) + (row_ + i) * pitch;
    }
    panel.keys += take;
    row_ += take;
  }

  KeyRuns runs_;
  int64_t element_bytes_, last_token_;
  KeyRange range_;
  size_t run_ = 0;
  int64_t row_ = 0, keys_before_ = 0;  // next row in this run; rows of the runs before it
};

}  // namespace longnet
