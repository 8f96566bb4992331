#include "execute/cuda/task_lists.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {
namespace {

bool continues(const AttendTask& a, const AttendTask& b) {
  const int64_t n = a.q.rows;
  if (a.kv.data() != b.kv.data() || a.kv.size() != b.kv.size()) return false;
  if (a.q.row_stride != b.q.row_stride || a.q.token_step != b.q.token_step ||
      a.out.o_stride != b.out.o_stride || a.out.lse_stride != b.out.lse_stride)
    return false;
  // Rows of Q are 16-bit here: the device's kernels read nothing else.
  return static_cast<const uint16_t*>(a.q.q) + n * a.q.row_stride == b.q.q &&
         a.q.first_token + n * a.q.token_step == b.q.first_token &&
         a.out.o + n * a.out.o_stride == b.out.o && a.out.lse + n * a.out.lse_stride == b.out.lse;
}

// Does the op touch the slot at all?
bool touches(const Op& op, int slot) {
  const auto any = [&](auto&... held) { return ((held.slot == slot) || ...); };
  return std::visit(Overload{[&](const Pack& o) { return any(o.from, o.into); },
                             [&](const Send& o) { return any(o.what); },
                             [&](const Recv& o) { return any(o.what); },
                             [&](const AllGather& o) { return any(o.into); },
                             [&](const AllToAll& o) { return any(o.from, o.into); },
                             [&](const ReduceScatter& o) { return any(o.what); },
                             [&](const Attend& o) { return any(o.q, o.kv, o.into); },
                             [&](const Merge& o) { return any(o.from, o.into); },
                             [&](const Reset& o) { return any(o.into); }},
                    op.what);
}

bool depends_on(const Op& op, OpId other) {
  return std::find(op.after.begin(), op.after.end(), other) != op.after.end();
}

}  // namespace

std::vector<AttendTask> join_tasks(std::span<const AttendTask> tasks) {
  std::vector<AttendTask> joined;
  for (const AttendTask& task : tasks) {
    if (!joined.empty() && continues(joined.back(), task))
      joined.back().q.rows += task.q.rows;
    else
      joined.push_back(task);
  }
  return joined;
}

std::map<OpId, OpId> fusible_merges(const RankProgram& program) {
  std::map<OpId, OpId> pairs;
  for (size_t j = 0; j < program.ops.size(); ++j) {
    const auto* const merge = std::get_if<Merge>(&program.ops[j].what);
    if (merge == nullptr || merge->from.slot == merge->into.slot) continue;
    // The last op before it that touches the partial must be the one attend that writes it.
    size_t i = j;
    while (i > 0 && !touches(program.ops[i - 1], merge->from.slot)) --i;
    if (i == 0) continue;
    const auto* const attend = std::get_if<Attend>(&program.ops[i - 1].what);
    if (attend == nullptr || attend->into.slot != merge->from.slot) continue;
    const OpId attend_id = OpId(i - 1);
    bool free = depends_on(program.ops[j], attend_id);
    for (size_t between = i; between < j; ++between)
      free = free && !depends_on(program.ops[between], attend_id);
    if (free) pairs[OpId(j)] = attend_id;
  }
  return pairs;
}

std::optional<std::vector<AttendTask>> fuse_merges(std::span<const AttendTask> attends,
                                                   std::span<const MergeTask> merges) {
  std::map<const float*, const MergeTask*> by_begin;
  int64_t rows_to_merge = 0, rows_attended = 0;
  for (const MergeTask& merge : merges) {
    rows_to_merge += merge.rows;
    if (merge.rows > 0) by_begin[merge.from.o] = &merge;
  }
  std::vector<AttendTask> fused;
  for (const AttendTask& task : attends) {
    for (int64_t at = 0; at < task.q.rows;) {
      const float* const o = task.out.o + at * task.out.o_stride;
      auto found = by_begin.upper_bound(o);
      if (found == by_begin.begin()) return std::nullopt;
      const MergeTask& merge = *(--found)->second;
      const int64_t distance = o - merge.from.o, stride = merge.from.o_stride;
      if (stride <= 0 || distance % stride != 0 || distance / stride >= merge.rows)
        return std::nullopt;
      const int64_t first = distance / stride;
      const bool one_step = task.out.o_stride == stride;
      const int64_t rows = one_step ? std::min(task.q.rows - at, merge.rows - first) : 1;
      AttendTask part = task;
      part.q.q = static_cast<const uint16_t*>(task.q.q) + at * task.q.row_stride;
      part.q.first_token += at * task.q.token_step;
      part.q.rows = rows;
      part.out = merge.into;
      part.out.o += first * merge.into.o_stride;
      part.out.lse += first * merge.into.lse_stride;
      fused.push_back(part);
      at += rows;
      rows_attended += rows;
    }
  }
  if (rows_attended != rows_to_merge) return std::nullopt;
  return fused;
}

}  // namespace longnet
