// What a run of a DeviceExecutor left, looked at.
#include <utility>

#include "execute/cuda/device_executor.h"
#include "execute/program_rows.h"

namespace longnet {

int64_t DeviceExecutor::count_nan() const {
  MemoryLedger ledger;
  DeviceBuffer total(ledger, "check", sizeof(unsigned long long));
  compute_.fill(total.data(), 0, total.size());
  DType dtype = sharded().problem.output_dtype;
  for (const std::span<const float> values : made_values(*bound_))  // O, then fp32
    longnet::count_nan(values.data(), int64_t(values.size()),
                       reinterpret_cast<unsigned long long*>(total.data()), compute_,
                       std::exchange(dtype, DType::kFloat32));
  unsigned long long count = 0;
  compute_.copy(&count, total.data(), sizeof count);
  compute_.synchronize();
  return int64_t(count);
}

std::shared_ptr<const BoundProgram> DeviceExecutor::on_host(std::span<const int> slots) const {
  struct Copy {
    std::vector<std::vector<std::byte>> slots;
    std::optional<BoundProgram> bound;
  };
  const auto copy = std::make_shared<Copy>();
  BoundProgram::Memory memory(program().slots.size());
  for (const int slot : slots) {
    auto& bytes = copy->slots.emplace_back(bound_->memory(slot).size());
    read(bound_->memory(slot), bytes.data());
    memory[size_t(slot)] = bytes;
  }
  return {copy, &copy->bound.emplace(*bound_, std::move(memory))};
}

// Sampled rows are copied to the host.
SampleErrors DeviceExecutor::compare(const ExpectedRows& expected) const {
  const BoundProgram& bound = *bound_;
  const int64_t d = sharded().problem.head_dim;
  const int64_t count = int64_t(expected.samples.size());
  MemoryLedger ledger;
  DeviceBuffer packed(ledger, "check", count * (d + 1) * int64_t{sizeof(float)});
  auto* const at = reinterpret_cast<float*>(packed.data());
  std::vector<PackTask> rows, lses;
  for (int64_t i = 0; i < count; ++i) {
    const QuerySample& q = expected.samples[size_t(i)];
    const int64_t batch = q.batch - bound.first_batch();
    rows.push_back({output_row(bound, batch, q.head, q.token).data(), at + i * d, d, d, 1});
    lses.push_back({output_lse(bound, batch, q.head, q.token), at + count * d + i, 1, 1, 1});
  }
  // Both have lists, until the copies are done.
  const DType dtype = sharded().problem.output_dtype;
  const Prepared pack_rows =
      prepare_pack(rows, dtype == DType::kFloat32 ? Conversion::kNone : Conversion::kWiden, d,
                   dtype_bytes(dtype), ledger);
  const Prepared pack_lses = prepare_pack(lses, Conversion::kNone, 1, 4, ledger);
  pack_rows.launch(compute_);
  pack_lses.launch(compute_);
  std::vector<float> host(size_t(count * (d + 1)));
  compute_.copy(host.data(), packed.data(), packed.size());
  compute_.synchronize();
  return compare_rows(expected, [&](size_t i) {
    OutputRow row{{host.data() + int64_t(i) * d, size_t(d)}, {}};
    if (bound.program().output_is_partial()) row.lse = host[size_t(count * d) + i];
    return row;
  });
}

}  // namespace longnet
