// Attention tasks on rows that are already on a device, and grids of such tasks at equal distances.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace longnet {

// Row i of the run is at q + i * row_stride (elements of the storage dtype), at global position
// first_token + i * token_step. Within a row the head_dim elements are contiguous.
struct QueryRun {
  const void* q = nullptr;
  int64_t row_stride = 0, rows = 0;
  int64_t first_token = 0, token_step = 1;
  int64_t last_token() const { return first_token + (rows - 1) * token_step; }
};

// One number for each dimension of a grid of tasks (AttendGrid).
inline constexpr int kGridDimensions = 4;
using GridVector = std::array<int64_t, kGridDimensions>;
inline int64_t along(const GridVector& place, const GridVector& step) {
  return std::inner_product(place.begin(), place.end(), step.begin(), int64_t{0});
}

inline int64_t bytes_between(const void* from, const void* to) {
  return static_cast<const std::byte*>(to) - static_cast<const std::byte*>(from);
}

struct KvRun {
  const void* k = nullptr;
  const void* v = nullptr;  // same stride as k
  int64_t row_stride = 0, rows = 0;
  int64_t first_token = 0, token_step = 1;
  GridVector step_bytes{};  // distance to the same run of the grid's next task
};

// Row i of O at o + i * o_stride, its LSE at lse[i * lse_stride]. Strides count floats, also
// where O has 16 bits: a row is head_dim / 2 floats then.
struct PartialRun {
  float* o = nullptr;
  float* lse = nullptr;
  int64_t o_stride = 0, lse_stride = 0;
};

// The key runs of one task: those of its grid's first task, moved to its place.
class KeyRuns {
 public:
  KeyRuns() = default;
  KeyRuns(const KvRun* first, size_t count) : runs_(first, count) {}
  KeyRuns(std::span<const KvRun> runs) : runs_(runs) {}
  KeyRuns(const std::vector<KvRun>& runs) : runs_(runs) {}

  size_t size() const { return runs_.size(); }
  bool empty() const { return runs_.empty(); }
  KvRun operator[](size_t i) const {
    KvRun run = runs_[i];
    const int64_t bytes = along(at_, run.step_bytes);
    run.k = static_cast<const std::byte*>(run.k) + bytes;
    run.v = static_cast<const std::byte*>(run.v) + bytes;
    return run;
  }
  KeyRuns moved(const GridVector& steps) const {
    KeyRuns out = *this;
    for (size_t d = 0; d < steps.size(); ++d) out.at_[d] += steps[d];
    return out;
  }

  std::vector<KvRun> list() const {
    std::vector<KvRun> all;
    for (const KvRun run : *this) all.push_back(run);
    return all;
  }

  struct Iterator {
    const KeyRuns* runs;
    size_t i;
    KvRun operator*() const { return (*runs)[i]; }
    Iterator& operator++() { return ++i, *this; }
    bool operator!=(const Iterator& other) const { return i != other.i; }
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  std::span<const KvRun> runs_;
  GridVector at_{};
};

// All rows of `q` attend to all rows of all `kv` runs (causal: to those at positions <= their own).
// Every row of `out` is overwritten.
struct AttendTask {
  QueryRun q;
  KeyRuns kv;
  PartialRun out;
};

// The rows [first, first + rows) of a task, whose queries have elements of `element_bytes`.
AttendTask rows_of(const AttendTask& task, int64_t first, int64_t rows, int64_t element_bytes);

// Tasks of one shape at equal distances: task (i, j, k, l) is `task` with every address moved i, j,
// k and l steps. Positions are those of the first task: a causal mask depends on their differences
// alone, which all tasks share. A dilated branch is such a grid of segments, offsets, heads and
// sequences:
//
//   H = 12, r = 4, 8 segments: count {8, 4, 3, 1}. The next offset lies one token and one head
//   further, the next head of the same offset r heads further.
struct AttendGrid {
  AttendTask task;
  GridVector count{1, 1, 1, 1};
  GridVector q_step_bytes{}, o_step{}, lse_step{};  // bytes, floats, floats; keys: KvRun

  int64_t size() const { return count[0] * count[1] * count[2] * count[3]; }
  GridVector place(int64_t i) const;  // place of task i; the first dimension fastest
  AttendTask at(const GridVector& place) const;
  AttendTask at(int64_t i) const { return at(place(i)); }
};

// The backward pass of an AttendTask: it adds to dQ, dK and dV, which are fp32. dO lies row for row
// as Q does, and so does dQ; dK and dV lie as K and V do, at equal distances in elements.
struct BackwardTask {
  QueryRun q;
  const void* grad_out = nullptr;     // dO of the first row, row_stride as of Q
  const float* statistics = nullptr;  // L of the first row, delta right behind it
  int64_t statistics_stride = 2;      // floats
  float* grad_q = nullptr;            // dQ of the first row, row_stride as of Q
  KeyRuns kv;
  const void* keys = nullptr;  // the element of K or V here has its gradient at grad_keys
  float* grad_keys = nullptr;

  // Where the gradient of an element of K or V is. Rows keep their distances in elements.
  float* gradient_of(const void* k_or_v, int64_t element_bytes) const {
    return grad_keys + bytes_between(keys, k_or_v) / element_bytes;
  }
};

// The rows [first, first + rows) of a task, as above.
BackwardTask rows_of(const BackwardTask& task, int64_t first, int64_t rows, int64_t element_bytes);

// The backward tasks of a grid. dQ rows of two tasks are disjoint; their key runs are the same rows
// or disjoint ones: query heads that share a K/V head, and pieces of a causal shard, add to the
// same gradients.
struct BackwardGrid {
  AttendGrid attend;  // Q and keys; it has no results
  // The first row of the first task; dO and dQ have the steps of Q.
  const void* grad_out = nullptr;
  float* grad_q = nullptr;
  const float* statistics = nullptr;
  int64_t statistics_stride = 2;  // floats
  GridVector statistics_step{};   // floats
  // The rows of all tasks, see BackwardTask.
  const void* keys = nullptr;
  float* grad_keys = nullptr;

  int64_t size() const { return attend.size(); }
  BackwardTask at(const GridVector& place, int64_t element_bytes) const;
  BackwardTask at(int64_t i, int64_t element_bytes) const {
    return at(attend.place(i), element_bytes);
  }
};

// Distances from the tasks of a grid to those of the next one: bytes, floats, floats, bytes of each
// key run.
struct GridStep {
  int64_t q = 0, o = 0, lse = 0;
  std::vector<int64_t> keys = {};
  bool operator==(const GridStep&) const = default;
};
// Nothing when the grids differ by more than their place, or the second one lies before the first.
// Grids without results have steps of Q and keys alone.
std::optional<GridStep> step_between(const AttendGrid& a, const AttendGrid& b);

// True for the same tasks in the same memory, whatever the tokens: queries are as far from keys.
bool same_tasks(std::span<const AttendGrid> a, std::span<const AttendGrid> b);

// Lists of key runs that grids refer to; they stay where they are when another one is added.
using KvLists = std::deque<std::vector<KvRun>>;

// The grid `count` times, `step` apart, in a dimension that has one task so far.
AttendGrid repeated(const AttendGrid& grid, size_t dimension, int64_t count, const GridStep& step,
                    KvLists& lists);
// Neighbours at equal distances as one grid that is longer in `dimension`, where each has one task.
//
//   12 heads, r = 4: offsets 0 1 2 3 0 1 2 3 0 1 2 3 -> 3 grids of 4, then 1 grid of 4 x 3
std::vector<AttendGrid> joined(const std::vector<AttendGrid>& grids, size_t dimension,
                               KvLists& lists);

}  // namespace longnet
