#include "execute/bound_program.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {

BoundProgram::BoundProgram(const Schedule& schedule, RankProgram program, const BindOptions& how,
                           Memory memory)
    : sharded_(schedule.sharded),
      program_(std::move(program)),
      how_(how),
      memory_(std::move(memory)) {
  const AttentionProblem& p = sharded_.problem;
  const MixRule mix = sharded_.pattern.mix;
  options_ = {.head_dim = p.head_dim, .dtype = p.dtype, .causal = p.causal};
  if (mix == MixRule::kMean) options_.output_scale = 1.0f / float(sharded_.pattern.branches.size());
  merge_rule_ = mix == MixRule::kLse ? MergeRule::kLse : MergeRule::kSum;
  check(memory_.size() == program_.slots.size(), "blocks of memory: ", memory_.size(),
        ", slots: ", program_.slots.size());
  for (size_t i = 0; i < memory_.size(); ++i) {
    const size_t bytes = size_t(program_.slots[i].bytes);
    check(memory_[i].size() >= bytes, "slot ", i, " needs ", bytes, " bytes, has ",
          memory_[i].size());
    memory_[i] = memory_[i].first(bytes);
  }
  ops_.resize(program_.ops.size());
  for (size_t i = 0; i < program_.ops.size(); ++i) bind(program_.ops[i], ops_[i]);
}

void BoundProgram::bind(const Op& op, BoundOp& bound) {
  const auto kind_of = [&](const SlotView& view) { return program_.slots[size_t(view.slot)].kind; };
  const auto bytes_of = [&](const SlotView& view) {
    const RowMap map(sharded_, kind_of(view), view.rows);
    return memory_[size_t(view.slot)].subspan(size_t(map.begin_byte(view)),
                                              size_t(map.num_bytes(view)));
  };
  const auto piece_sizes = [&](const SlotView& view) {
    const RowMap map(sharded_, kind_of(view), view.rows);
    std::vector<int64_t> sizes;
    for (const auto& piece : map.pieces()) sizes.push_back(map.piece_bytes(piece));
    return sizes;
  };
  visit_op(
      op.what, [&](const Pack& o) { bind_pack(o, bound); },
      [&](const Send& o) { bound.peer = o.to, bound.from = bytes_of(o.what); },
      [&](const Recv& o) { bound.peer = o.from, bound.into = bytes_of(o.what); },
      [&](const AllGather& o) {
        check(o.into.rows.owners == o.group, "pieces in another order than the group's");
        bound.group = o.group, bound.into = bytes_of(o.into);
        bound.into_counts = piece_sizes(o.into);
      },
      [&](const AllToAll& o) {
        bound.group = o.group;
        bound.from = bytes_of(o.from), bound.from_counts = piece_sizes(o.from);
        bound.into = bytes_of(o.into), bound.into_counts = piece_sizes(o.into);
      },
      [&](const ReduceScatter&) {
        check(false, "a reduce_scatter must be lowered before it runs");
      },
      [&](const Attend& o) { bind_attend(o, bound); },
      [&](const AttendBackward& o) { bind_backward(o, bound); },
      [&](const Delta& o) { bind_delta(o, bound); }, [&](const Merge& o) { bind_merge(o, bound); },
      [&](const Reset& o) { bind_reset(o, bound); });
}

PartialRun BoundProgram::partial_at(const SlotView& view, const RowMap::Piece& piece,
                                    RowMap::Place place) const {
  const int64_t d = sharded_.problem.head_dim;
  auto* const o = reinterpret_cast<float*>(memory_[size_t(view.slot)].data() + piece.byte_offset);
  return {.o = o + place.row * d,
          .lse = o + piece.rows * d + place.row,
          .o_stride = place.step * d,
          .lse_stride = place.step};
}

const RowMap::Piece& piece_of(const RowMap& map, const SlotView& view, Rank owner, int64_t head) {
  for (int i = 0; i < view.num_pieces(); ++i) {
    const auto& piece = map.pieces()[size_t(view.first_piece() + i)];
    if (piece.owner == owner && piece.heads.contains(head)) return piece;
  }
  throw Error(concat("slot ", view.slot, " holds no rows of rank ", owner, " and head ", head));
}

void BoundProgram::bind_merge(const Merge& op, BoundOp& bound) {
  const TensorKind kind = program_.slots[size_t(op.from.slot)].kind;
  const RowMap from(sharded_, kind, op.from.rows), into(sharded_, kind, op.into.rows);
  const auto add = [&](const RowMap::Piece& a, const RowMap::Piece& b, RowMap::Place x,
                       RowMap::Place y, int64_t rows) {
    if (!holds_gradient(kind)) {
      bound.merges.push_back(
          {.from = partial_at(op.from, a, x), .into = partial_at(op.into, b, y), .rows = rows});
      return;
    }
    for (const int tensor : {0, 1}) {  // gradients of V lie behind those of K
      if (tensor == 1 && !holds_keys(kind)) continue;
      const RowMap::Place k{x.row + tensor * a.rows, x.step}, l{y.row + tensor * b.rows, y.step};
      const PartialRun source = partial_at(op.from, a, k), target = partial_at(op.into, b, l);
      bound.sums.push_back({source.o, target.o, source.o_stride, target.o_stride, rows});
    }
  };
  for (int i = 0; i < op.from.num_pieces(); ++i) {
    const auto& a = from.pieces()[size_t(op.from.first_piece() + i)];
    const auto& b = piece_of(into, op.into, a.owner, a.heads.first);
    for (int64_t batch = 0; batch < sharded_.problem.batch; ++batch)
      for (const int64_t head : from.heads_with_rows(a.heads))
        from.for_each_run(a, head, [&](const TokenRange& run) {
          add(a, b, from.locate(a, batch, head, run), into.locate(b, batch, head, run), run.count);
        });
  }
}

void BoundProgram::bind_pack(const Pack& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const TensorKind kind = program_.slots[size_t(op.from.slot)].kind;
  const TensorKind into_kind = program_.slots[size_t(op.into.slot)].kind;
  const RowMap from(sharded_, kind, op.from.rows), into(sharded_, into_kind, op.into.rows);
  const auto &a = from.pieces()[size_t(op.from.first_piece())],
             &b = into.pieces()[size_t(op.into.first_piece())];
  std::byte* const source = memory_[size_t(op.from.slot)].data() + a.byte_offset;
  std::byte* const target = memory_[size_t(op.into.slot)].data() + b.byte_offset;
  const auto o_bytes = [&](TensorKind k) {
    return k == TensorKind::kPartial ? int64_t{sizeof(float)} : dtype_bytes(p.dtype);
  };
  const int64_t from_row = p.head_dim * o_bytes(kind), into_row = p.head_dim * o_bytes(into_kind);
  const bool partial = kind == TensorKind::kPartial && into_kind == kind;
  auto& packs = kind != into_kind ? (kind == TensorKind::kPartial ? bound.rounds : bound.widens)
                : partial         ? bound.float_packs
                                  : bound.packs;
  const auto copy = [&](int64_t batch, int64_t head, const TokenRange& run) {
    const auto x = from.locate(a, batch, head, run), y = into.locate(b, batch, head, run);
    const auto pack = [&](int64_t x_offset, int64_t y_offset) {
      packs.push_back({.from = source + (x.row + x_offset) * from_row,
                       .into = target + (y.row + y_offset) * into_row,
                       .from_stride = x.step * p.head_dim,
                       .into_stride = y.step * p.head_dim,
                       .rows = run.count});
    };
    pack(0, 0);
    if (kind == TensorKind::kKeyValue) pack(a.rows, b.rows);  // V lies behind all K
    if (partial)
      bound.lse_packs.push_back({reinterpret_cast<const float*>(source + a.rows * from_row) + x.row,
                                 reinterpret_cast<float*>(target + b.rows * into_row) + y.row,
                                 x.step, y.step, run.count});
  };
  const std::vector<int64_t> heads = into.heads_with_rows(intersect(a.heads, b.heads));
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (const int64_t head : heads)
      into.for_each_run(b, head, [&](const TokenRange& run) { copy(batch, head, run); });
}

void BoundProgram::bind_reset(const Reset& op, BoundOp& bound) {
  const TensorKind kind = program_.slots[size_t(op.into.slot)].kind;
  const RowMap map(sharded_, kind, op.into.rows);
  if (holds_gradient(kind)) {
    auto* const first =
        reinterpret_cast<float*>(memory_[size_t(op.into.slot)].data() + map.begin_byte(op.into));
    bound.zeros.push_back({first, size_t(map.num_bytes(op.into)) / sizeof(float)});
    return;
  }
  for (const auto& piece : map.pieces()) {
    auto* const o =
        reinterpret_cast<float*>(memory_[size_t(op.into.slot)].data() + piece.byte_offset);
    const size_t values = size_t(piece.rows * sharded_.problem.head_dim);
    bound.zeros.push_back({o, values});
    bound.absent.push_back({o + values, size_t(piece.rows)});
  }
}

std::optional<BoundOp> BoundProgram::bind_fused(OpId attend, OpId merge) const {
  Attend op = std::get<Attend>(program_.ops[size_t(attend)].what);
  const auto& fold = std::get<Merge>(program_.ops[size_t(merge)].what);
  const RowMap partial(sharded_, TensorKind::kPartial, fold.from.rows);
  int64_t rows = 0, attended = 0;
  for (const auto& piece : partial.pieces()) rows += piece.rows;
  op.into = fold.into;
  BoundOp bound;
  bind_attend(op, bound);
  for (const AttendGrid& grid : bound.attends) attended += grid.size() * grid.task.q.rows;
  if (attended != rows || fold.from.num_pieces() != fold.from.rows.num_pieces())
    return std::nullopt;
  return bound;
}

BoundOp BoundProgram::bind_own_attend() {
  const Slice own{kEveryRow, {.first = how_.rank}, sharded_.all_tokens(), sharded_.all_heads()};
  ShardedProblem dense = sharded_;
  dense.pattern = dense_pattern(sharded_.problem.seq_len);
  BoundOp bound;
  std::swap(dense, sharded_);
  bind_attend({0,
               sharded_.all_tokens(),
               sharded_.all_heads(),
               {kQuerySlot, own},
               {kKvSlot, own},
               {kOutputSlot, own}},
              bound);
  std::swap(dense, sharded_);
  return bound;
}

// ---- attends: which rows of which slot each task reads and writes, as grids of tasks at equal
// distances.
//
// N = 16, P = 4, branch {8, 2}, rank 1 (tokens 4 to 7), head 0: its queries 4 and 6 become one
// task; the task's keys 0 2 4 6 lie in a gathered slot as two runs, 0 2 (of rank 0) and 4 6 (of
// rank 1). Two heads and segments of 2 tokens would make a grid of 2 segments x 2 heads.

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
  RowMap::Place q, out;
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
    const std::byte* const base = program.memory_[size_t(op.kv.slot)].data();
    for (const auto& piece : map.pieces())
      map.for_each_run(piece, op.branch, head, within, [&](const TokenRange& k, int64_t) {
        const auto place = map.locate(piece, batch, head, k);
        const std::byte* const at = base + piece.byte_offset + place.row * row;
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
  const RowMap out(sharded_, program_.slots[size_t(op.into.slot)].kind, op.into.rows);
  const BranchRows rows(sharded_.pattern, op.branch, p);
  const int64_t row = p.head_dim * dtype_bytes(p.dtype);
  const std::byte* const q_base = memory_[size_t(op.q.slot)].data();

  // Pieces of queries and results belong together by owner; gathers may have ordered the queries.
  const auto out_of = [&](size_t q_piece, int64_t head) -> const RowMap::Piece& {
    return piece_of(out, op.into, queries.pieces()[q_piece].owner, head);
  };
  const auto grid_of = [&](const LocatedRun& run, int64_t head, const KeyRuns& kv) {
    const auto &q_piece = queries.pieces()[run.piece], &out_piece = out_of(run.piece, head);
    AttendGrid grid{.task = {.q = {.q = q_base + q_piece.byte_offset + run.q.row * row,
                                   .row_stride = run.q.step * p.head_dim,
                                   .rows = run.tokens.count,
                                   .first_token = run.tokens.first,
                                   .token_step = run.tokens.stride},
                             .kv = kv,
                             .out = partial_at(op.into, out_piece, run.out)}};
    if (run.segments == 1) return grid;
    TokenRange next = run.tokens;
    next.first += rows.segment_length();
    grid.count[0] = run.segments;
    grid.q_step_bytes[0] = (queries.locate(q_piece, batch, head, next).row - run.q.row) * row;
    grid.lse_step[0] = out.locate(out_piece, batch, head, next).row - run.out.row;
    grid.o_step[0] = grid.lse_step[0] * p.head_dim;
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
            const auto o = out.locate(out_of(i, head), batch, head, tokens);
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

// The grids of the forward pass with dQ in the place of O. All else that belongs to a row of Q, or of
// K and V, is the row of the same number in its slot.
void BoundProgram::bind_backward(const AttendBackward& op, BoundOp& bound) const {
  bind_attend(op.attend(), bound);
  const auto slot = [&](const SlotView& view) { return memory_[size_t(view.slot)].data(); };
  const auto floats = [&](const SlotView& view) { return reinterpret_cast<float*>(slot(view)); };
  for (AttendGrid& grid : bound.attends) {
    PartialRun& rows = grid.task.out;
    rows.lse = floats(op.statistics) + (rows.o - floats(op.into_q)) / options_.head_dim * 2;
    rows.lse_stride *= 2;
    for (int64_t& step : grid.lse_step) step *= 2;
    bound.backwards.push_back(
        {.attend = grid,
         .grad_out = slot(op.grad_out) + bytes_between(slot(op.q), grid.task.q.q),
         .keys = slot(op.kv),
         .grad_keys = floats(op.into_kv)});
  }
  bound.attends.clear();
}

void BoundProgram::bind_delta(const Delta& op, BoundOp& bound) const {
  const RowMap partials(sharded_, TensorKind::kPartial, op.output.rows),
      grad_out(sharded_, TensorKind::kGradOut, op.grad_out.rows),
      statistics(sharded_, TensorKind::kStatistics, op.into.rows);
  for (int i = 0; i < op.into.num_pieces(); ++i) {
    const size_t at = size_t(op.into.first_piece() + i);
    const RowMap::Piece& piece = partials.pieces()[at];
    bound.deltas.push_back(
        {.out = partial_at(op.output, piece, {0, 1}),
         .grad_out = memory_[size_t(op.grad_out.slot)].data() + grad_out.pieces()[at].byte_offset,
         .statistics = reinterpret_cast<float*>(memory_[size_t(op.into.slot)].data() +
                                                statistics.pieces()[at].byte_offset),
         .grad_out_stride = options_.head_dim,
         .rows = piece.rows});
  }
}

}  // namespace longnet
