// The loop of the `cuda_sm90a` kernel: FlashAttention-3's pipeline (Shah et al., 2024) on wgmma and
// TMA, over strided views.
//
// A block stays on its SM and does a list of tiles. One warp loads, ahead of the others, Q of the
// next tile and a few stages of K and V; the consumer warpgroups (64 query rows each) multiply.
// Within one of them, Q K^T of the next key tile and P V of this one are in flight while the
// exponentials are computed.
//
//   d = 64, 2048 keys, 192 x 128 tiles: 16 key tiles; step i issues S(i + 1) and P(i) V(i), waits
//   for S(i + 1), turns it into P(i + 1), waits for O, rescales it.
//
// As in attend_tile.h, nothing here needs a GPU: `Producer` and `Group` either are one
// (attend_sm90a.cu) or play one (emulated_group.h), and a test on the CPU executes this text with a
// thread per warpgroup.
#pragma once
#include <cstdint>

#include "kernels/cuda/group_layout.h"
#include "kernels/cuda/softmax_rows.h"

namespace longnet {

// A place in the ring of stages, and the parity of the ring's round.
template <int kStages>
struct RingPlace {
  int stage = 0, parity = 0;
  LONGNET_HOST_DEVICE void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// What one warp of a consumer warpgroup keeps, and the products that it takes part in.
template <class Shape, class Warp>
class GroupRows : public SoftmaxRows<1, Shape::kDim, Shape::kKeys, Warp> {
  using Rows = SoftmaxRows<1, Shape::kDim, Shape::kKeys, Warp>;
  using Rows::warp_;

 public:
  static constexpr int kDim = Shape::kDim, kKeys = Shape::kKeys;

  // S = Q K^T, in flight until wait().
  LONGNET_HOST_DEVICE void issue_scores(int group, int stage) {
    warp_.fence(s_[0]);
    LONGNET_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      const int dims = k % 4 * 32;  // bytes within a row
      const int q = k / 4 * Shape::kQSlabBytes + group * 64 * Shape::kRowBytes + dims;
      const int key = Shape::k_offset(stage) + k / 4 * Shape::kSlabBytes + dims;
      warp_.multiply(s_[0], warp_.descriptor(q, 0), warp_.descriptor(key, 0), k > 0);
    }
    warp_.commit();
  }
  // O += P V, in flight until wait(); P may not change before.
  LONGNET_HOST_DEVICE void issue_values(int stage) {
    warp_.fence(this->o[0]);
    LONGNET_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      const int v = Shape::v_offset(stage) + k * 16 * Shape::kRowBytes;
      warp_.multiply_add(this->o[0], p_[k][0], warp_.descriptor(v, Shape::kSlabBytes));
    }
    warp_.commit();
  }
  // Until at most kPending of the issued products are in flight.
  template <int kPending>
  LONGNET_HOST_DEVICE void wait() {
    warp_.template wait<kPending>();
    warp_.settle(s_[0]);
    if constexpr (kPending == 0) warp_.settle(this->o[0]);
  }
  // S of a key tile becomes exponentials; O is still to be rescaled.
  LONGNET_HOST_DEVICE void exponentials(const GroupInputs& in, int tile_row,
                                        const KeyTiles<kKeys>& keys) {
    if (!keys.all_visible())
      this->mask_columns(s_, 0, kKeys, [&](int row) { return keys.limit(in, tile_row + row); });
    this->softmax(s_, in.scale_log2, shrink_);
    this->hold();
  }
  LONGNET_HOST_DEVICE void rescale_output() { this->rescale(shrink_); }
  LONGNET_HOST_DEVICE void pack_weights() {
    LONGNET_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) this->pack(p_[k], s_, k);
  }

 private:
  typename Rows::Scores s_;
  typename Rows::Factors shrink_;
  typename Rows::Fragment p_[kKeys / 16][1];
};

LONGNET_HOST_DEVICE inline int last_row(const GroupTask& task, int first, int rows) {
  return (first + rows < task.rows ? first + rows : task.rows) - 1;
}

enum class Operand { kQuery, kKey, kValue };

// What the loading warp does: one lane of it.
template <class Shape, class Producer>
LONGNET_HOST_DEVICE void produce(Producer& producer, const GroupInputs& in, int block) {
  RingPlace<Shape::kStages> place;
  int q_parity = 0;
  const auto load = [&](Operand operand, int full, const ViewPlace& from, int row, int into) {
    const int slab_bytes = operand == Operand::kQuery ? Shape::kQSlabBytes : Shape::kSlabBytes;
    producer.expect(full, Shape::kSlabs * slab_bytes);
    LONGNET_UNROLL
    for (int slab = 0; slab < Shape::kSlabs; ++slab)
      producer.load(operand, from, slab * Shape::kSlabDim, row, into + slab * slab_bytes, full);
  };
  for (int i = in.block_begin[block]; i < in.block_begin[block + 1]; ++i) {
    const GroupTile tile = in.tiles[i];
    const GroupTask& task = in.tasks[tile.task];
    KeyTiles<Shape::kKeys> keys(task, tile.row, last_row(task, tile.row, Shape::kRows));
    // In the order in which the consumers want them: K0 Q K1 V0 K2 V1 ... A place for values is
    // free later than one for keys, which must not wait for it.
    bool first = true;
    RingPlace<Shape::kStages> last{};
    ViewPlace last_v{};
    int last_key = 0;
    const auto load_values = [&] {
      producer.wait(Shape::v_empty(last.stage), last.parity ^ 1);
      load(Operand::kValue, Shape::v_full(last.stage), last_v, last_key,
           Shape::v_offset(last.stage));
    };
    while (keys.next(in)) {
      const GroupRun& run = keys.run(in);
      producer.wait(Shape::k_empty(place.stage), place.parity ^ 1);
      load(Operand::kKey, Shape::k_full(place.stage), run.k, keys.key(),
           Shape::k_offset(place.stage));
      if (first) {  // a fresh barrier's phase before the first counts as complete
        producer.wait(Shape::kQEmpty, q_parity ^ 1);
        load(Operand::kQuery, Shape::kQFull, task.q, tile.row, 0);
        q_parity ^= 1;
        first = false;
      } else {
        load_values();
      }
      last = place;
      last_v = run.v;
      last_key = keys.key();
      place.advance();
    }
    if (!first) load_values();
  }
}

// What consumer warpgroup `index` does.
template <class Shape, class Group>
LONGNET_HOST_DEVICE void consume(Group& group, const GroupInputs& in, int block, int index) {
  RingPlace<Shape::kStages> place;
  int q_parity = 0;
  for (int i = in.block_begin[block]; i < in.block_begin[block + 1]; ++i) {
    const GroupTile tile = in.tiles[i];
    const GroupTask& task = in.tasks[tile.task];
    KeyTiles<Shape::kKeys> keys(task, tile.row, last_row(task, tile.row, Shape::kRows));
    group.begin(index * 64);
    if (keys.next(in)) {
      group.wait(Shape::kQFull, q_parity);
      q_parity ^= 1;
      group.wait(Shape::k_full(place.stage), place.parity);
      group.warps([&](auto& w) {
        w.issue_scores(index, place.stage);
        w.template wait<0>();
      });
      group.arrive(Shape::k_empty(place.stage));
      group.warps([&](auto& w) {
        w.exponentials(in, tile.row, keys);  // O is zero: nothing to rescale
        w.pack_weights();
      });
      while (keys.next(in)) {
        const RingPlace<Shape::kStages> now = place;
        place.advance();
        group.wait(Shape::k_full(place.stage), place.parity);
        if constexpr (Shape::kTakeTurns) group.take_turn(index);
        group.warps([&](auto& w) { w.issue_scores(index, place.stage); });
        group.wait(Shape::v_full(now.stage), now.parity);
        group.warps([&](auto& w) { w.issue_values(now.stage); });
        if constexpr (Shape::kTakeTurns) group.pass_turn(index);
        group.warps([&](auto& w) { w.template wait<1>(); });
        group.arrive(Shape::k_empty(place.stage));
        group.warps([&](auto& w) {
          w.exponentials(in, tile.row, keys);  // while O += P V is in flight
          w.template wait<0>();
        });
        group.arrive(Shape::v_empty(now.stage));
        group.warps([&](auto& w) {
          w.rescale_output();
          w.pack_weights();
        });
      }
      group.arrive(Shape::kQEmpty);
      group.wait(Shape::v_full(place.stage), place.parity);
      group.warps([&](auto& w) {
        w.issue_values(place.stage);
        w.template wait<0>();
      });
      group.arrive(Shape::v_empty(place.stage));
      place.advance();
    }
    const TileRows to = tile_rows(task, in);
    group.warps([&](auto& w) { w.finish(to, tile.row); });
  }
}

}  // namespace longnet
