// Part of BoundProgram: which rows of which slot each task reads and writes, as grids of tasks at
// equal distances.
//
//   for each head             its queries, in runs of rows at equal distances     LocatedRun
//     for each run              the keys of its segment, in runs in their slot    KeyLists
//                               a task; whole segments alike are a grid           stretches
//   grids side by side, in one: heads at equal distances, sequences               joined, repeated
//
// N = 16, P = 4, branch {8, 2}, two heads, rank 1 (tokens 4 to 7), keys gathered from ranks 0, 1:
//
//   head   queries   keys      the same in the gathered slot
//   0      4 6       0 2 4 6   two runs: 0 2 of rank 0, 4 6 of rank 1
//   1      5 7       1 3 5 7   two runs, each as far behind those of head 0
//
// are a grid of 1 segment x 2 heads; segments of 2 tokens would make one of 2 segments x 2 heads.
#include <algorithm>

#include "execute/bound_program.h"

namespace longnet {
namespace {

// Whole segments that differ by their place alone: `tokens` are those of the first one.
struct Stretch {
  TokenInterval tokens;
  int64_t segments = 1;
};

bool holds(const RowMap& map, TokenInterval tokens) {
  for (const auto& piece : map.pieces())
    for (const TokenRange& range : piece.tokens)
      if (range.stride == 1 && range.first <= tokens.begin && range.last() + 1 >= tokens.end)
        return true;
  return false;
}

// `within`, cut where tasks stop to repeat from segment to segment: queries in `range`, keys of the
// same segments in one piece.
std::vector<Stretch> stretches(const ShardedProblem& s, const BranchRows& rows, const RowMap& keys,
                               const TokenRange& range, TokenInterval within) {
  const TokenInterval part = intersect({range.first, range.last() + 1}, within);
  const int64_t w = rows.segment_length();
  const int64_t begin = ceil_div(part.begin, w) * w, segments = (part.end - begin) / w;
  const TokenInterval whole{begin, begin + segments * w};
  if (part.empty() || range.stride != 1 || rows.is_summary() || s.pattern.phase_parts > 1 ||
      segments < 2 || !holds(keys, whole))
    return {{part}};
  std::vector<Stretch> out;
  if (part.begin < whole.begin) out.push_back({{part.begin, whole.begin}});
  out.push_back({{whole.begin, whole.begin + w}, segments});
  if (whole.end < part.end) out.push_back({{whole.end, part.end}});
  return out;
}

// Query rows of one head that lie at equal distances in both slots.
struct LocatedRun {
  TokenRange tokens;
  int64_t segment, segments;
  RowMap::Place q, out;  // out: where there are results
  size_t piece;
};

// Phase parts cut a segment's rows; those that continue each other become one run again.
bool continues(const LocatedRun& a, const LocatedRun& b) {
  return a.segments == 1 && b.segments == 1 && a.piece == b.piece && a.segment == b.segment &&
         a.tokens.stride == b.tokens.stride && a.tokens[a.tokens.count] == b.tokens.first &&
         a.q.step == b.q.step && a.q.row + a.tokens.count * a.q.step == b.q.row;
}

}  // namespace

// The key runs of one (sequence, head), segment by segment, in lists that `bound` keeps.
struct BoundProgram::KeyLists {
  const BoundProgram& program;
  const Attend& op;
  const RowMap& map;
  const BranchRows& rows;
  int64_t batch, head;
  BoundOp& bound;
  int64_t last_segment = -1;
  KeyRuns last_runs = {};
  std::vector<KvRun>* twice = nullptr;
  std::vector<size_t> begin = {};  // in `twice`, of the segments 0 .. n-1, 0 .. n-2, and the end

  // Returns the key runs of `segment`, which stands for `segments` segments of the same shape.
  KeyRuns of_segment(int64_t segment, int64_t segments) {
    if (rows.is_summary()) return all_but(segment);
    if (segment != last_segment) {
      last_segment = segment;
      auto& list = bound.kv_runs.emplace_back();
      append(list, rows.segment(segment), segments);
      last_runs = list;
    }
    return last_runs;
  }

  void append(std::vector<KvRun>& list, TokenInterval within, int64_t segments) const {
    const AttentionProblem& p = program.sharded_.problem;
    const int64_t row = p.head_dim * dtype_bytes(p.dtype);
    for (const auto& piece : map.pieces())
      map.for_each_run(piece, op.branch, head, within, [&](const TokenRange& k, int64_t) {
        const auto place = map.locate(piece, batch, head, k);
        const std::byte* const at = program.begin_of(op.kv, piece) + place.row * row;
        list.push_back({.k = at,
                        .v = at + piece.rows * row,
                        .row_stride = place.step * p.head_dim,
                        .rows = k.count,
                        .first_token = k.first,
                        .token_step = k.stride});
        if (segments == 1) return;
        TokenRange next = k;
        next.first += rows.segment_length();
        list.back().step_bytes[0] = (map.locate(piece, batch, head, next).row - place.row) * row;
      });
  }

  // A summary branch has one list for all segments, put down twice, so that "all but one segment"
  // is a contiguous part of it.
  KeyRuns all_but(int64_t segment) {
    const int64_t segments = rows.num_segments();
    if (begin.empty()) {
      twice = &bound.kv_runs.emplace_back();
      for (const int round : {0, 1})
        for (int64_t s = 0; s < segments - round; ++s) {
          begin.push_back(twice->size());
          append(*twice, rows.segment(s), 1);
        }
      begin.push_back(twice->size());
    }
    const size_t from = size_t((segment + 1) % segments), to = from + size_t(segments) - 1;
    return {twice->data() + begin[from], begin[to] - begin[from]};
  }
};

// The grids of one sequence: a head's first, then heads at equal distances together.
std::vector<AttendGrid> BoundProgram::attends_of_batch(const Attend& op, int64_t batch,
                                                       BoundOp& bound) const {
  const AttentionProblem& p = sharded_.problem;
  const RowMap queries(sharded_, TensorKind::kQuery, op.q.rows);
  const RowMap keys(sharded_, TensorKind::kKeyValue, op.kv.rows);
  std::optional<RowMap> out;  // none in a backward pass
  if (op.into.slot >= 0) out.emplace(sharded_, TensorKind::kPartial, op.into.rows);
  const BranchRows rows(sharded_.pattern, op.branch, p);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);

  // Pieces of queries and results belong together by owner; gathers may have ordered the queries.
  const auto out_of = [&](size_t q_piece, int64_t head) -> const RowMap::Piece& {
    return piece_of(*out, op.into, queries.pieces()[q_piece].owner, head);
  };
  const auto grid_of = [&](const LocatedRun& run, int64_t head, const KeyRuns& kv) {
    const RowMap::Piece& q_piece = queries.pieces()[run.piece];
    AttendGrid grid{.task = {.q = {.q = begin_of(op.q, q_piece) + run.q.row * row,
                                   .row_stride = run.q.step * p.head_dim,
                                   .rows = run.tokens.count,
                                   .first_token = run.tokens.first,
                                   .token_step = run.tokens.stride},
                             .kv = kv,
                             .out = {}}};
    if (out) grid.task.out = partial_at(op.into, out_of(run.piece, head), run.out);
    if (run.segments == 1) return grid;
    TokenRange next = run.tokens;
    next.first += rows.segment_length();
    grid.count[0] = run.segments;
    grid.q_step_bytes[0] = (queries.locate(q_piece, batch, head, next).row - run.q.row) * row;
    if (!out) return grid;
    grid.lse_step[0] = out->locate(out_of(run.piece, head), batch, head, next).row - run.out.row;
    grid.o_step[0] = grid.lse_step[0] * p.output_row_floats();
    return grid;
  };

  std::vector<std::vector<AttendGrid>> of_heads;
  size_t most = 0;
  for (int64_t head = op.heads.first; head < op.heads.end(); ++head) {
    std::vector<LocatedRun> runs;
    for (size_t i = 0; i < queries.pieces().size(); ++i) {
      const RowMap::Piece& piece = queries.pieces()[i];
      for (const TokenRange& range : piece.tokens)
        for (const auto& [within, segments] : stretches(sharded_, rows, keys, range, op.queries)) {
          const auto add = [&, repeats = segments](const TokenRange& tokens, int64_t segment) {
            const auto q = queries.locate(piece, batch, head, tokens);
            const auto o = out ? out->locate(out_of(i, head), batch, head, tokens) : q;
            const LocatedRun run{tokens, segment, repeats, q, o, i};
            if (!runs.empty() && continues(runs.back(), run))
              runs.back().tokens.count += tokens.count;
            else
              runs.push_back(run);
          };
          queries.for_each_run(piece, op.branch, head, within, add);
        }
    }
    KeyLists lists{*this, op, keys, rows, batch, head, bound};
    auto& grids = of_heads.emplace_back();
    for (const LocatedRun& run : runs)
      grids.push_back(grid_of(run, head, lists.of_segment(run.segment, run.segments)));
    most = std::max(most, grids.size());
  }
  std::vector<AttendGrid> side_by_side;  // the first grid of every head, then the second, ...
  for (size_t i = 0; i < most; ++i)
    for (const auto& grids : of_heads)
      if (i < grids.size()) side_by_side.push_back(grids[i]);
  return joined(joined(side_by_side, 1, bound.kv_runs), 2, bound.kv_runs);
}

void BoundProgram::bind_attend(const Attend& op, BoundOp& bound) const {
  const int64_t batches = sharded_.problem.batch;
  bound.attends = attends_of_batch(op, 0, bound);
  if (batches == 1) return;
  const auto second = attends_of_batch(op, 1, bound);
  for (size_t i = 0; i < second.size(); ++i) {
    AttendGrid& grid = bound.attends.at(i);
    grid = repeated(grid, 3, batches, step_between(grid, second[i]).value(), bound.kv_runs);
  }
}

// The grids of the forward pass without results. What belongs to a row of Q, or of K and V, is the
// row of the same number in its slot.
void BoundProgram::bind_backward(const AttendBackward& op, BoundOp& bound) const {
  Attend attend = op.attend();
  attend.into.slot = -1;
  bind_attend(attend, bound);
  const int64_t d = options_.head_dim, q_row = d * dtype_bytes(options_.dtype);
  const auto slot = [&](const SlotView& view) { return memory_[size_t(view.slot)].data(); };
  const auto floats = [&](const SlotView& view) { return reinterpret_cast<float*>(slot(view)); };
  for (const AttendGrid& grid : bound.attends) {
    const QueryRun& q = grid.task.q;
    const int64_t row = bytes_between(slot(op.q), q.q) / q_row;
    BackwardGrid& backward = bound.backwards.emplace_back();
    backward = {.attend = grid,
                .grad_out = slot(op.grad_out) + row * q_row,
                .grad_q = floats(op.into_q) + row * d,
                .statistics = floats(op.statistics) + row * 2,
                .statistics_stride = q.row_stride / d * 2,
                .keys = slot(op.kv),
                .grad_keys = floats(op.into_kv)};
    for (size_t i = 0; i < grid.q_step_bytes.size(); ++i)
      backward.statistics_step[i] = grid.q_step_bytes[i] / q_row * 2;
  }
  bound.attends.clear();
}

void BoundProgram::bind_delta(const Delta& op, BoundOp& bound) const {
  const RowMap partials(sharded_, TensorKind::kPartial, op.output.rows),
      lses(sharded_, TensorKind::kPartial, op.lse.rows),
      grad_out(sharded_, TensorKind::kGradOut, op.grad_out.rows),
      statistics(sharded_, TensorKind::kStatistics, op.into.rows);
  const int64_t d = options_.head_dim;
  for (int i = 0; i < op.into.num_pieces(); ++i) {
    const auto piece_at = [&](const RowMap& map, const SlotView& view) -> const RowMap::Piece& {
      return map.pieces()[size_t(view.first_piece() + i)];
    };
    const RowMap::Piece &from = piece_at(partials, op.output), &lse = piece_at(lses, op.lse),
                        &gradients = piece_at(grad_out, op.grad_out),
                        &into = piece_at(statistics, op.into);
    std::byte* const first_gradient = begin_of(op.grad_out, gradients);
    auto* const first_statistics = reinterpret_cast<float*>(begin_of(op.into, into));
    const auto add = [&](RowMap::Place o, RowMap::Place l, RowMap::Place g, RowMap::Place s,
                         int64_t rows) {
      PartialRun out = partial_at(op.output, from, o);
      const PartialRun with_lse = partial_at(op.lse, lse, l);
      out.lse = with_lse.lse, out.lse_stride = with_lse.lse_stride;
      bound.deltas.push_back({.out = out,
                              .grad_out = first_gradient + g.row * d * dtype_bytes(options_.dtype),
                              .statistics = first_statistics + 2 * s.row,
                              .grad_out_stride = g.step * d,
                              .statistics_stride = 2 * s.step,
                              .rows = rows});
    };
    if (op.output.rows.branch == op.into.rows.branch) {
      add({0, 1}, {0, 1}, {0, 1}, {0, 1}, from.rows);
      continue;
    }
    for (int64_t batch = 0; batch < sharded_.problem.batch; ++batch)
      for (int64_t head = from.heads.first; head < from.heads.end(); ++head)
        partials.for_each_run(from, head, [&](const TokenRange& run) {
          add(partials.locate(from, batch, head, run), lses.locate(lse, batch, head, run),
              grad_out.locate(gradients, batch, head, run),
              statistics.locate(into, batch, head, run), run.count);
        });
  }
}

}  // namespace longnet
