#include "kernels/cuda/device_row_worker.h"

#include "core/check.h"
#include "core/cuda/device.h"
#include "kernels/cuda/rows.h"

namespace longnet {
namespace {

class DeviceRowWorker final : public RowWorker {
 public:
  void fill(std::span<const FillRows> tasks, const RowFormat& format, int threads,
            uint64_t* digest_sum) const override {
    MemoryLedger lists;
    const DeviceFill fill(
        tasks, format.seed, format.head_dim,
        format.dtype == DType::kFloat32 ? StoredAs::kFloat32 : StoredAs::kBFloat16, lists);
    fill.launch(stream_);
    stream_.synchronize();
    if (digest_sum != nullptr) *digest_sum += digest(tasks, format, threads);
  }

  uint64_t digest(std::span<const FillRows> tasks, const RowFormat& format, int) const override {
    check(format.head_dim % 8 == 0, "head_dim must be a multiple of 8, is ", format.head_dim);
    return device_digest(tasks, format.head_dim, dtype_bytes(format.dtype), stream_);
  }

  void summarize(std::span<const OutputRows> tasks, int64_t head_dim, int,
                 std::span<OutputSummary> summaries) const override {
    device_summarize(tasks, head_dim, stream_, summaries);
  }

  void poison(std::span<std::byte> bytes, int) const override {
    stream_.fill(bytes.data(), 0xFF, int64_t(bytes.size()));
    stream_.synchronize();
  }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<RowWorker> make_device_row_worker() { return std::make_unique<DeviceRowWorker>(); }

}  // namespace longnet
