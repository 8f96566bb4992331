#include "core/random.h"

namespace longnet {
namespace {

template <class Store>
void generate(const RowKey& key, int64_t lanes, Store store) {
  for (int64_t lane = 0; lane < lanes; lane += 4) {
    const PhiloxBlock block = row_words(key, lane / 4);
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
