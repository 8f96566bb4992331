// The share of a program that a walk runs where the whole would take too long.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "execute/virtual_walk.h"
#include "schedule/accounting.h"

namespace longnet {
namespace {

// Returns `wanted` indices below `all`, spread evenly.
std::vector<size_t> evenly(size_t wanted, size_t all) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < wanted; ++i) chosen.push_back((2 * i + 1) * all / (2 * wanted));
  return chosen;
}

double pairs_of(const AttendTask& task, bool causal) {
  int64_t pairs = 0;
  const TokenRange q{task.q.first_token, task.q.token_step, task.q.rows};
  for (const KvRun& kv : task.kv)
    pairs += count_pairs(q, {kv.first_token, kv.token_step, kv.rows}, causal);
  return double(pairs);
}

double pairs_of(const std::vector<AttendGrid>& grids, bool causal) {
  double pairs = 0;
  for (const AttendGrid& grid : grids) pairs += double(grid.size()) * pairs_of(grid.task, causal);
  return pairs;
}

constexpr int64_t kRowsPerPiece = 2048, kBackwardRowsPerPiece = 1024;

// Tasks in pieces of at most kRowsPerPiece queries.
class Pieces {
 public:
  Pieces(const std::vector<AttendGrid>& grids, int64_t element_bytes)
      : grids_(grids), element_bytes_(element_bytes) {
    for (const AttendGrid& grid : grids)
      end_.push_back(int64_t(size()) + grid.size() * ceil_div(grid.task.q.rows, kRowsPerPiece));
  }
  size_t size() const { return end_.empty() ? 0 : size_t(end_.back()); }
  AttendGrid operator[](size_t i) const {
    const auto found = std::ranges::upper_bound(end_, int64_t(i));
    const AttendGrid& grid = grids_[size_t(found - end_.begin())];
    const int64_t rows = grid.task.q.rows, pieces = ceil_div(rows, kRowsPerPiece);
    const int64_t at = int64_t(i) - (found == end_.begin() ? 0 : *(found - 1));
    const int64_t first = at % pieces * kRowsPerPiece;
    return {.task = rows_of(grid.at(at / pieces), first, std::min(kRowsPerPiece, rows - first),
                            element_bytes_)};
  }

 private:
  const std::vector<AttendGrid>& grids_;
  int64_t element_bytes_;
  std::vector<int64_t> end_;  // one past the last piece of each grid
};

// Runs whole rounds of tasks: they keep the device busy to the end, as all tasks together do.
std::vector<AttendGrid> choose_tasks(const std::vector<AttendGrid>& grids, double share,
                                     int at_once, const AttendOptions& options) {
  const Pieces tasks(grids, dtype_bytes(options.dtype));
  const auto round = size_t(at_once);
  const size_t rounds =
      std::max<size_t>(1, size_t(std::llround(share * double(tasks.size()) / double(round))));
  std::vector<AttendGrid> chosen;
  for (const size_t t : evenly(std::min(rounds * round, tasks.size()), tasks.size()))
    chosen.push_back(tasks[t]);
  return chosen;
}

// Returns the grid with rows [first, first + rows) of each task.
BackwardGrid rows_of(const BackwardGrid& grid, int64_t first, int64_t rows, int64_t element_bytes) {
  const BackwardTask part = rows_of(grid.at(0, element_bytes), first, rows, element_bytes);
  BackwardGrid out = grid;
  out.attend.task.q = part.q;
  out.grad_out = part.grad_out;
  out.grad_q = part.grad_q;
  out.statistics = part.statistics;
  return out;
}

// Grids of a backward pass run one after another, so pieces have rows of all tasks, and enough of
// them for as many tasks at once.
std::vector<BackwardGrid> choose_tasks(const std::vector<BackwardGrid>& grids, double share,
                                       int at_once, const AttendOptions& options) {
  std::vector<BackwardGrid> pieces, chosen;
  for (const BackwardGrid& grid : grids) {
    const int64_t all = grid.attend.task.q.rows;
    const int64_t rows = kBackwardRowsPerPiece * ceil_div(int64_t{at_once}, grid.size());
    for (int64_t first = 0; first < all; first += rows)
      pieces.push_back(
          rows_of(grid, first, std::min(rows, all - first), dtype_bytes(options.dtype)));
  }
  const auto wanted = size_t(std::llround(share * double(pieces.size())));
  for (const size_t i : evenly(std::max<size_t>(1, wanted), pieces.size()))
    chosen.push_back(pieces[i]);
  return chosen;
}

double pairs_of(const std::vector<BackwardGrid>& grids, bool causal) {
  double pairs = 0;
  for (const BackwardGrid& grid : grids) pairs += pairs_of({grid.attend}, causal);
  return pairs;
}

// The ops that attend in one pass, and which of them run.
struct Attends {
  std::vector<size_t> ops{}, chosen{};
  double share_of_each = 1;  // each chosen one's

  void choose(double share) {
    const double wanted = share * double(ops.size());
    for (const size_t i : evenly(size_t(std::ceil(wanted)), ops.size())) chosen.push_back(ops[i]);
    share_of_each = wanted / double(chosen.size());
  }
  bool runs(size_t op) const { return std::ranges::binary_search(chosen, op); }
};

}  // namespace

double WalkShare::flops_share() const {
  return is_whole() ? 1
                    : (pairs.run + kBackwardFlops * backward_pairs.run) /
                          (pairs.all + kBackwardFlops * backward_pairs.all);
}

double WalkTimes::pass_s(const WalkShare& share) const {
  return attend_s * share.pairs.scale() + attend_backward_s * share.backward_pairs.scale() +
         merge_s * share.merges.scale() + pack_s;
}

ShareChoice choose_share(const BoundProgram& bound, double share, int at_once) {
  check(share > 0 && share <= 1, "a share of ", share);
  const auto& ops = bound.program().ops;
  const AttendOptions& options = bound.options();
  ShareChoice out{.runs = std::vector<bool>(ops.size(), false),
                  .attends = std::vector<std::vector<AttendGrid>>(ops.size()),
                  .backwards = std::vector<std::vector<BackwardGrid>>(ops.size()),
                  .share = {}};
  Attends forward, backward;
  for (size_t i = 0; i < ops.size(); ++i) {
    const BoundOp& op = bound.op(i);
    out.share.merges.all += std::holds_alternative<Merge>(ops[i].what);
    out.share.pairs.all += pairs_of(op.attends, options.causal);
    out.share.backward_pairs.all += pairs_of(op.backwards, options.causal);
    if (!op.attends.empty()) forward.ops.push_back(i);
    if (!op.backwards.empty()) backward.ops.push_back(i);
  }
  forward.choose(share);
  backward.choose(share);
  // Messages that no attend has read so far, by slot. Messages of other rows replace them.
  struct Message {
    size_t op;
    Slice rows;
  };
  std::map<int, std::vector<Message>> pending;
  bool fresh = false;  // the last attend runs, and so does its merge
  for (size_t i = 0; i < ops.size(); ++i) {
    const Action& what = ops[i].what;
    if (is_communication(what)) {
      for_each_view(what, [&](const SlotView& view, bool writes) {
        if (!writes) return;
        auto& messages = pending[view.slot];
        if (!messages.empty() && messages.front().rows != view.rows) messages.clear();
        messages.push_back({i, view.rows});
      });
    } else if (std::holds_alternative<Attend>(what) ||
               std::holds_alternative<AttendBackward>(what)) {
      out.runs[i] = fresh = forward.runs(i) || backward.runs(i);
      if (!fresh) continue;
      for_each_view(what, [&](const SlotView& view, bool) {
        for (const Message& m : pending[view.slot]) out.runs[m.op] = true;
        pending[view.slot].clear();
      });
      const BoundOp& op = bound.op(i);
      if (forward.runs(i))
        out.attends[i] = choose_tasks(op.attends, forward.share_of_each, at_once, options);
      else
        out.backwards[i] = choose_tasks(op.backwards, backward.share_of_each, at_once, options);
      out.share.pairs.run += pairs_of(out.attends[i], options.causal);
      out.share.backward_pairs.run += pairs_of(out.backwards[i], options.causal);
    } else {
      const bool merge = std::holds_alternative<Merge>(what);
      out.runs[i] = !merge || fresh;
      out.share.merges.run += merge && fresh;
    }
  }
  return out;
}

}  // namespace longnet
