// Reads the results of a DeviceExecutor's run back from the device.
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

std::vector<float> DeviceExecutor::read_rows(const MemoryRows& rows) const {
  size_t count = 0;
  for (const std::span<const float> row : rows) count += row.size();
  // Page-locked: each copy into other memory would block until it is over.
  const PinnedBuffer landing(int64_t(count * sizeof(float)));
  auto* const first = reinterpret_cast<float*>(landing.data());
  float* at = first;
  for (const std::span<const float> row : rows) {
    compute_.copy(at, row.data(), int64_t(row.size_bytes()));
    at += row.size();
  }
  compute_.synchronize();
  return {first, at};
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

}  // namespace longnet
