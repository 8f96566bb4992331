// Ops of a bound program, prepared for a GPU.
#include <limits>

#include "execute/cuda/device_executor.h"
#include "execute/program_rows.h"

namespace longnet {

void prepare_rows(const BoundProgram& bound, OpId id, DeviceOp& op, MemoryLedger& ledger) {
  const BoundOp& b = bound.op(size_t(id));
  const AttentionProblem& p = bound.sharded().problem;
  const int64_t element = dtype_bytes(p.dtype), row = p.head_dim * element;
  auto& rows = op.rows;
  if (!b.packs.empty()) rows.push_back(prepare_pack(b.packs, row, element, ledger));
  if (!b.float_packs.empty())
    rows.push_back(prepare_pack(b.float_packs, p.head_dim * 4, 4, ledger));
  if (!b.lse_packs.empty()) rows.push_back(prepare_pack(b.lse_packs, 4, 4, ledger));
  for (const auto& [list, how] :
       {std::pair{&b.rounds, Conversion::kRound}, std::pair{&b.widens, Conversion::kWiden}})
    if (!list->empty()) rows.push_back(prepare_convert(*list, how, p.head_dim, ledger));
  if (!b.merges.empty())
    rows.push_back(prepare_merge(b.merges, bound.merge_rule(), p.head_dim, ledger));
  op.zeros = b.zeros;
  op.absent = b.absent;
}

int64_t prepare_messages(const BoundProgram& bound, OpId id, DeviceOp& op, MemoryLedger& ledger) {
  const ReceivedRows received = received_rows(bound, size_t(id));
  const AttentionProblem& p = bound.sharded().problem;
  op.own_from = received.own_from;
  op.own_into = received.own_into;
  op.fill = prepare_fill(received.rows, p.seed, p.head_dim, StoredAs::kBFloat16, ledger);
  return received.bytes;
}

void DeviceOp::enqueue(const Stream& stream) const {
  if (attend) attend->launch(stream);
  for (const PreparedRows& some : rows) some.launch(stream);
  fill.launch(stream);
  if (!own_from.empty()) stream.copy(own_into.data(), own_from.data(), int64_t(own_from.size()));
  for (const std::span<float> part : zeros)
    fill_floats(part.data(), int64_t(part.size()), 0.0f, stream);
  for (const std::span<float> part : absent)
    fill_floats(part.data(), int64_t(part.size()), -std::numeric_limits<float>::infinity(), stream);
}

}  // namespace longnet
