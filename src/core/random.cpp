#include "core/random.h"

namespace longnet {
namespace {

template <class Store>
void generate(const RowKey& key, int64_t lanes, Store store) {
  const uint64_t token = uint64_t(key.token);
  const uint32_t head_and_tensor = uint32_t(key.head) | uint32_t(key.tensor) << 24;
  for (int64_t lane = 0; lane < lanes; lane += 4) {
    const PhiloxBlock block = philox4x32_10(
        {{uint32_t(token), uint32_t(token >> 32), head_and_tensor, uint32_t(lane / 4)}},
        uint32_t(key.seed), uint32_t(key.seed >> 32));
    for (int i = 0; i < 4; ++i) store(lane + i, unit_normal_like(block.word[i]));
  }
}

}  // namespace

void generate_row(const RowKey& key, int64_t lanes, float* out) {
  generate(key, lanes, [out](int64_t lane, float x) { out[lane] = x; });
}

void generate_row(const RowKey& key, int64_t lanes, uint16_t* out) {
  generate(key, lanes, [out](int64_t lane, float x) { out[lane] = bf16_bits(x); });
}

}  // namespace longnet
