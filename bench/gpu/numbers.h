// Numbers that a check has on the host and on the device, to compute with them in both places.
#pragma once
#include <bit>
#include <cstring>
#include <vector>

#include "core/random.h"
#include "gpu/support.h"
#include "kernels/model_kernel.h"

namespace longnet::gpu {

enum class Place { kHost, kDevice };

// An array on the host and its copy on the device: equal until one of them is written to.
class Numbers {
 public:
  template <class T>
  Numbers(const std::vector<T>& values, MemoryLedger& ledger)
      : bytes_(values.size() * sizeof(T)), buffer_(ledger, "numbers", int64_t(bytes_.size())) {
    std::memcpy(bytes_.data(), values.data(), bytes_.size());
    upload();
  }
  // A matrix of normal numbers, with a gap behind each row.
  static Numbers normal(int64_t rows, int64_t cols, uint32_t seed, DType dtype,
                        MemoryLedger& ledger, int64_t gap = 8) {
    const int64_t count = rows * (cols + gap), each = dtype_bytes(dtype);
    std::vector<std::byte> bytes(size_t(count * each));
    PhiloxBlock words{};
    for (int64_t i = 0; i < count; ++i) {
      if (i % 4 == 0) words = philox4x32_10({{uint32_t(i), 1, 2, 3}}, seed, 5);
      const float x = unit_normal_like(words.word[i % 4]);
      const uint32_t bits = each == 4 ? std::bit_cast<uint32_t>(x) : bf16_bits(x);
      std::memcpy(&bytes[size_t(i * each)], &bits, size_t(each));  // little-endian, as all of CUDA
    }
    Numbers made(bytes, ledger);
    made.shape_ = {nullptr, rows, cols, cols + gap, dtype};
    return made;
  }

  template <class T>
  T* at(Place place) {
    return reinterpret_cast<T*>(place == Place::kHost ? bytes_.data() : buffer_.data());
  }
  Matrix matrix(Place place) {
    Matrix m = shape_;
    m.data = at<std::byte>(place);
    return m;
  }
  const Matrix& shape() const { return shape_; }
  void upload() { buffer_.upload(bytes_); }  // the host's
  std::vector<std::byte> downloaded() const {
    return download<std::byte>(buffer_.data(), buffer_.size());
  }

 private:
  std::vector<std::byte> bytes_;
  DeviceBuffer buffer_;
  Matrix shape_{};
};

// Row i as it is stored, and the gap behind it.
inline std::vector<float> stored_row(const Matrix& m, int64_t i) {
  std::vector<float> out;
  for (int64_t at = i * m.stride; at < (i + 1) * m.stride; ++at)
    out.push_back(m.dtype == DType::kFloat32
                      ? static_cast<const float*>(m.data)[at]
                      : bf16_value(static_cast<const uint16_t*>(m.data)[at]));
  return out;
}

}  // namespace longnet::gpu
