#include "kernels/cuda/model_workspace.h"

#include "kernels/cuda/device_model.h"

namespace longnet {
namespace {

int64_t aligned(int64_t bytes) { return ceil_div(bytes, int64_t{256}) * 256; }
int64_t floats(int64_t count) { return count * int64_t{sizeof(float)}; }
int64_t doubles(int64_t count) { return count * int64_t{sizeof(double)}; }

int64_t workspace_bytes(const auto&) { return 0; }
int64_t workspace_bytes(const GemmTask& task) {
  int64_t bytes = kGemmWorkspace;
  for (const Matrix& x : {task.a, task.b})
    if (is_rounded(task, x)) bytes += bytes_of(rounded_form(x));
  return bytes + (rounds_bias(task) ? bytes_of(rounded_form(bias_of(task))) : 0);
}
int64_t workspace_bytes(const AddColumnsTask& task) {
  return floats(pieces_of(task.x.rows, kColumnsPiece) * task.x.cols);
}
int64_t workspace_bytes(const LayerNormBackwardTask& task) {
  return floats(pieces_of(task.x.rows, kNormPiece) * 2 * pitch_of(task.x));
}
int64_t workspace_bytes(const SumOfSquaresTask&) { return doubles(kMostSums); }
int64_t workspace_bytes(const CrossEntropyTask&) { return doubles(kMostLosses); }
int64_t workspace_bytes(const UpdateTask&) { return int64_t{sizeof(UpdateFactors)}; }
int64_t workspace_bytes(const EmbedBackwardTask& task) { return EmbedScratch(task, nullptr).bytes; }

}  // namespace

bool is_rounded(const GemmTask& task, const Matrix& x) {
  const auto narrow = [](const Matrix& m) { return m.dtype == DType::kBFloat16; };
  return !narrow(x) && (task.of_bf16 || narrow(task.a) || narrow(task.b) || narrow(task.c));
}
bool rounds_bias(const GemmTask& task) {
  return task.bias != nullptr && task.c.dtype == DType::kBFloat16;
}
Matrix rounded_form(const Matrix& x) {
  return {nullptr, x.rows, x.cols, ceil_div(x.cols, int64_t{8}) * 8, DType::kBFloat16};
}
int64_t bytes_of(const Matrix& rounded) {
  return aligned(rounded.rows * rounded.stride * dtype_bytes(rounded.dtype));
}

EmbedScratch::EmbedScratch(const EmbedBackwardTask& task, std::byte* workspace)
    : count(task.grad_y.rows), tiles(ceil_div(count, int64_t{kTile})) {
  constexpr int64_t kChunks = 4096;
  chunk = std::clamp(ceil_div(count, kChunks), kFewestOfChunk, kMostOfChunk);
  chunks = ceil_div(count, chunk);
  const auto take = [&](int64_t words) {
    const int64_t at = bytes;
    bytes += aligned(words * 4);
    return workspace == nullptr ? nullptr : workspace + at;  // null: bytes are asked for
  };
  for (KeyList& list : lists) {
    list.token = reinterpret_cast<int32_t*>(take(count));
    list.row = reinterpret_cast<int32_t*>(take(count));
  }
  counts = reinterpret_cast<uint32_t*>(take(tiles * kDigits));
  head = reinterpret_cast<float*>(take(chunks * task.grad_y.cols));
  tail = reinterpret_cast<float*>(take(chunks * task.grad_y.cols));
}

int64_t model_workspace_bytes(const ModelTask& task) {
  return std::visit([](const auto& what) { return workspace_bytes(what); }, task);
}

}  // namespace longnet
