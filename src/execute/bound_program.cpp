#include "execute/bound_program.h"

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
  options_ = {
      .head_dim = p.head_dim, .dtype = p.dtype, .causal = p.causal, .output_dtype = p.output_dtype};
  if (mix == MixRule::kMean) options_.output_scale = 1.0f / float(sharded_.pattern.branches.size());
  merge_rule_ = mixes_by_lse(mix) ? MergeRule::kLse : MergeRule::kSum;
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
      [&](const Reset& o) { bind_reset(o, bound); },
      [&](const ModelOp&) {
        bound.tasks = model_tasks(sharded_, how_.rank, program_, op, memory_);
      });
}

int64_t BoundProgram::list_bytes() const {
  const auto of = [](const auto&... lists) {
    return (int64_t(lists.capacity() * sizeof(lists[0])) + ...);
  };
  int64_t bytes = of(program_.slots, program_.ops, program_.kept, memory_, ops_);
  for (const Op& op : program_.ops) bytes += of(op.after);
  for (const BoundOp& b : ops_) {
    bytes +=
        of(b.attends, b.backwards, b.deltas, b.merges, b.packs, b.float_packs, b.rounds, b.widens,
           b.lse_packs, b.sums, b.zeros, b.absent, b.tasks, b.from_counts, b.into_counts);
    for (const std::vector<KvRun>& runs : b.kv_runs)
      bytes += int64_t(sizeof(std::vector<KvRun>)) + of(runs);
  }
  return bytes;
}

BoundProgram::Memory BoundProgram::memory_for(const RankProgram& program) const {
  std::vector<bool> taken(memory_.size());
  Memory memory;
  for (size_t i = 0; i < program.slots.size(); ++i) {
    size_t at = i;
    const auto fits = [&] {
      return !taken[at] && std::ssize(memory_[at]) >= program.slots[i].bytes;
    };
    while (at < memory_.size() && !fits()) ++at;
    check(at < memory_.size(), "no memory for slot ", i);
    taken[at] = true;
    memory.push_back(memory_[at]);
  }
  return memory;
}

float* BoundProgram::row_at(const SlotView& view, const RowMap::Piece& piece, int64_t row) const {
  return reinterpret_cast<float*>(begin_of(view, piece)) + row * options_.head_dim;
}

PartialRun BoundProgram::partial_at(const SlotView& view, const RowMap::Piece& piece,
                                    RowMap::Place place) const {
  const int64_t row = sharded_.problem.output_row_floats();
  auto* const o = reinterpret_cast<float*>(begin_of(view, piece));
  return {.o = o + place.row * row,
          .lse = o + piece.rows * row + place.row,
          .o_stride = place.step * row,
          .lse_stride = place.step};
}

const RowMap::Piece& piece_of(const RowMap& map, const SlotView& view, Rank owner, int64_t head) {
  for (int i = 0; i < view.num_pieces(); ++i) {
    const auto& piece = map.pieces()[size_t(view.first_piece() + i)];
    if (piece.owner == owner && piece.heads.contains(head)) return piece;
  }
  throw Error("slot ", view.slot, " holds no rows of rank ", owner, " and head ", head);
}

void BoundProgram::bind_merge(const Merge& op, BoundOp& bound) {
  const TensorKind kind = program_.slots[size_t(op.from.slot)].kind;
  if (kind == TensorKind::kValues) return bind_values_merge(op, bound);
  const RowMap from(sharded_, kind, op.from.rows), into(sharded_, kind, op.into.rows);
  const int pieces = op.from.pieces_of_a_row();
  const auto add = [&](const RowMap::Piece& a, const RowMap::Piece& b, RowMap::Place x,
                       RowMap::Place y, int64_t rows) {
    if (!holds_sum(kind)) {
      bound.merges.push_back(
          {.from = partial_at(op.from, a, x), .into = partial_at(op.into, b, y), .rows = rows});
      return;
    }
    for (const int tensor : {0, 1}) {  // gradients of V lie behind those of K
      if (tensor == 1 && !holds_keys(kind)) continue;
      bound.sums.push_back({{.from = row_at(op.from, a, x.row + tensor * a.rows),
                             .into = row_at(op.into, b, y.row + tensor * b.rows),
                             .from_stride = x.step * options_.head_dim,
                             .into_stride = y.step * options_.head_dim,
                             .rows = rows},
                            pieces,
                            from.piece_bytes(a) / int64_t{sizeof(float)}});
    }
  };
  for (int i = 0; i < op.from.num_pieces(); i += pieces) {
    const auto& a = from.pieces()[size_t(op.from.first_piece() + i)];
    const auto& b = piece_of(into, op.into, a.owner, a.heads.first);
    for (int64_t batch = 0; batch < sharded_.problem.batch; ++batch)
      for (const int64_t head : from.heads_with_rows(a.heads))
        from.for_each_run(a, head, [&](const TokenRange& run) {
          add(a, b, from.locate(a, batch, head, run), into.locate(b, batch, head, run), run.count);
        });
  }
}

// Values are added as rows of head_dim, of which a part holds a whole number.
void BoundProgram::bind_values_merge(const Merge& op, BoundOp& bound) {
  const auto first_of = [&](const SlotView& view) {
    const RowMap map(sharded_, TensorKind::kValues, view.rows);
    return memory_[size_t(view.slot)].data() + map.begin_byte(view);
  };
  const int64_t values = values_of(op.from).length(), row = options_.head_dim;
  check(values_of(op.into).length() == values && values % row == 0, "a merge of ", values,
        " values, which are no rows of ", row);
  bound.sums.push_back({{.from = first_of(op.from),
                         .into = first_of(op.into),
                         .from_stride = row,
                         .into_stride = row,
                         .rows = values / row}});
}

void BoundProgram::bind_pack(const Pack& op, BoundOp& bound) {
  const AttentionProblem& p = sharded_.problem;
  const TensorKind kind = program_.slots[size_t(op.from.slot)].kind;
  const TensorKind into_kind = program_.slots[size_t(op.into.slot)].kind;
  const RowMap from(sharded_, kind, op.from.rows), into(sharded_, into_kind, op.into.rows);
  const auto &a = from.pieces()[size_t(op.from.first_piece())],
             &b = into.pieces()[size_t(op.into.first_piece())];
  std::byte *const source = begin_of(op.from, a), *const target = begin_of(op.into, b);
  const auto in_floats = [](TensorKind k) { return k == TensorKind::kPartial || holds_sum(k); };
  const auto row_of = [&](TensorKind k) {
    return p.head_dim * (in_floats(k) ? int64_t{sizeof(float)} : dtype_bytes(p.dtype));
  };
  const int64_t from_row = row_of(kind), into_row = row_of(into_kind);
  const bool partial = kind == TensorKind::kPartial && into_kind == kind;
  auto& packs = kind != into_kind ? (kind == TensorKind::kPartial ? bound.rounds : bound.widens)
                : in_floats(kind) ? bound.float_packs
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
    if (holds_keys(kind)) pack(a.rows, b.rows);  // V lies behind all K
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
  if (holds_sum(kind)) {
    auto* const first =
        reinterpret_cast<float*>(memory_[size_t(op.into.slot)].data() + map.begin_byte(op.into));
    bound.zeros.push_back({first, size_t(map.num_bytes(op.into)) / sizeof(float)});
    return;
  }
  for (const auto& piece : map.pieces()) {
    auto* const o = reinterpret_cast<float*>(begin_of(op.into, piece));
    const size_t floats = size_t(piece.rows * sharded_.problem.output_row_floats());
    bound.zeros.push_back({o, floats});
    bound.absent.push_back({o + floats, size_t(piece.rows)});
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

}  // namespace longnet
