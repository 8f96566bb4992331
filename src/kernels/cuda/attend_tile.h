// The tile loop of the `cuda` kernel: FlashAttention-2 (Dao, 2023) on mma.sync m16n8k16, sm_80 on.
//
// A block of four warps owns kRows query rows of one task and walks the task's keys in tiles of
// kKeys, double-buffered in shared memory. Nothing here needs a GPU: every step is written for a
// `Warp` and a `Block` that either are one (attend.cu: a Reg<T> is a register of this lane) or play
// one (emulated_block.h: a Reg<T> is the registers of 32 lanes), so that a test on the CPU executes
// this very text, fragment by fragment.
//
//   d = 64, 300 keys, 128 x 64 tiles: 5 key tiles; the last holds 44 keys, the mask hides the rest.
//
// Fragments of mma.m16n8k16 and ldmatrix: PTX ISA 8.x, sections 9.7.14.5.8 and 9.7.14.5.15.
#pragma once
#include <cstdint>

#include "kernels/cuda/softmax_rows.h"

namespace longnet {

// What one warp keeps between key tiles, and what it does with each.
template <class Shape, class Warp>
class WarpTile : public SoftmaxRows<Shape::kM, Shape::kDim, Shape::kKeys, Warp> {
  using Rows = SoftmaxRows<Shape::kM, Shape::kDim, Shape::kKeys, Warp>;
  using Rows::first_row_, Rows::warp_;

 public:
  template <class T>
  using Reg = typename Warp::template Reg<T>;
  using Rows::o;
  using typename Rows::Factors, typename Rows::Fragment, typename Rows::Scores;
  static constexpr int kM = Shape::kM, kDim = Shape::kDim, kKeys = Shape::kKeys;

  LONGNET_HOST_DEVICE void load_queries() {
    if constexpr (Shape::kQInRegisters) {
      LONGNET_UNROLL
      for (int k = 0; k < kDim / 16; ++k) load_query_fragments(q_[k], k);
    }
  }

  // Keys [key, key + kKeys) of the task are in stage `stage`; `cursor` stands at or before them.
  LONGNET_HOST_DEVICE void step(const TileInputs& in, const TileRef& tile, int stage, int64_t key,
                                const RunCursor& cursor) {
    Scores s;
    scores(s, stage);
    if (key + kKeys > tile.unmasked) mask(s, in, tile, key, cursor);
    Factors shrink;
    this->softmax(s, in.scale_log2, shrink);
    this->rescale(shrink);
    add_values(s, stage);
  }

 private:
  LONGNET_HOST_DEVICE void load_query_fragments(Fragment (&a)[kM], int k) {
    LONGNET_UNROLL
    for (int m = 0; m < kM; ++m) {
      Reg<int> address;
      warp_.lanes([&](int lane) {
        address[lane] = query_address<Shape>(lane, first_row_ + m * 16, k * 2);
      });
      warp_.ldmatrix(a[m], address);
    }
  }

  LONGNET_HOST_DEVICE void scores(Scores& s, int stage) {
    warp_.lanes([&](int lane) {
      LONGNET_UNROLL
      for (int m = 0; m < kM; ++m) {
        LONGNET_UNROLL
        for (int n = 0; n < kKeys / 8; ++n) {
          LONGNET_UNROLL
          for (int i = 0; i < 4; ++i) s[m][n][i][lane] = 0.0f;
        }
      }
    });
    LONGNET_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      Fragment once[kM];
      if constexpr (!Shape::kQInRegisters) load_query_fragments(once, k);
      LONGNET_UNROLL
      for (int n = 0; n < kKeys / 16; ++n) {
        Reg<int> address;
        warp_.lanes([&](int lane) {
          address[lane] = Shape::k_offset(stage) + key_address<Shape>(lane, n * 16, k * 2);
        });
        Fragment b;
        warp_.ldmatrix(b, address);
        LONGNET_UNROLL
        for (int m = 0; m < kM; ++m) {
          if constexpr (Shape::kQInRegisters) {
            warp_.mma(s[m][2 * n], q_[k][m], b[0], b[1]);
            warp_.mma(s[m][2 * n + 1], q_[k][m], b[2], b[3]);
          } else {
            warp_.mma(s[m][2 * n], once[m], b[0], b[1]);
            warp_.mma(s[m][2 * n + 1], once[m], b[2], b[3]);
          }
        }
      }
    }
  }

  // Run by run: a row sees the first keys of each.
  LONGNET_HOST_DEVICE void mask(Scores& s, const TileInputs& in, const TileRef& tile, int64_t key,
                                const RunCursor& cursor) const {
    RunCursor at = cursor;
    int begin = 0;
    while (begin < kKeys && key + begin < tile.keys) {
      at.advance_to(key + begin);
      const TileRun& run = at.run();
      const int64_t first = key + begin - run.begin;  // of the run, in column `begin`
      const int end = run.rows - first < kKeys - begin ? begin + int(run.rows - first) : kKeys;
      this->mask_columns(s, begin, end, [&](int row) {
        const int64_t seen = in.causal ? run.limit.visible(tile.row + row) : run.rows;
        return seen - first < end - begin ? begin + int(seen - first) : end;
      });
      begin = end;
    }
    if (begin < kKeys) this->mask_columns(s, begin, kKeys, [](int) { return 0; });
  }

  // O += P V
  LONGNET_HOST_DEVICE void add_values(Scores& p, int stage) {
    LONGNET_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      Fragment a[kM];
      this->pack(a, p, k);
      LONGNET_UNROLL
      for (int n = 0; n < kDim / 16; ++n) {
        Reg<int> address;
        warp_.lanes([&](int lane) {
          address[lane] = Shape::v_offset(stage) + value_address<Shape>(lane, k * 16, n * 2);
        });
        Fragment b;
        warp_.ldmatrix_transposed(b, address);
        LONGNET_UNROLL
        for (int m = 0; m < kM; ++m) {
          warp_.mma(o[m][2 * n], a[m], b[0], b[1]);
          warp_.mma(o[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  Fragment q_[Shape::kQInRegisters ? kDim / 16 : 1][Shape::kQInRegisters ? kM : 1];
};

// The tile's query rows; those beyond the task become zero.
template <class Shape, class Block>
LONGNET_HOST_DEVICE void load_queries(Block& block, const TileInputs& in, const TileRef& tile) {
  const TileTask& task = in.tasks[tile.task];
  block.threads([&](int thread) {
    const int chunk = thread % Shape::kChunks;
    const auto* const first =
        static_cast<const uint16_t*>(task.q) + int64_t{tile.row} * task.q_stride;
    LONGNET_UNROLL
    for (int pass = 0; pass < Shape::kRows / Shape::kRowsPerPass; ++pass) {
      const int row = thread / Shape::kChunks + pass * Shape::kRowsPerPass;
      const bool valid = chunk * 8 < in.head_dim && tile.row + row < task.rows;
      block.copy16(chunk_offset<Shape>(row, chunk),
                   first + (valid ? row * task.q_stride + chunk * 8 : 0), valid);
    }
  });
}

// Keys and values [key, key + kKeys) of the task into a stage; those beyond the tile's become zero.
template <class Shape, class Block>
LONGNET_HOST_DEVICE void load_keys(Block& block, const TileInputs& in, const TileRef& tile,
                                   int stage, int64_t key, const RunCursor& cursor) {
  block.threads([&](int thread) {
    const int chunk = thread % Shape::kChunks;
    const bool inside = chunk * 8 < in.head_dim;
    RunCursor at = cursor;
    TileRun run = at.run();
    LONGNET_UNROLL
    for (int pass = 0; pass < Shape::kKeys / Shape::kRowsPerPass; ++pass) {
      const int row = thread / Shape::kChunks + pass * Shape::kRowsPerPass;
      const int64_t index = key + row;
      const bool valid = inside && index < tile.keys;
      if (valid && index >= run.begin + run.rows) {
        at.advance_to(index);
        run = at.run();
      }
      const int64_t from = valid ? (index - run.begin) * run.stride + chunk * 8 : 0;
      const int into = chunk_offset<Shape>(row, chunk);
      block.copy16(Shape::k_offset(stage) + into, static_cast<const uint16_t*>(run.k) + from,
                   valid);
      block.copy16(Shape::v_offset(stage) + into, static_cast<const uint16_t*>(run.v) + from,
                   valid);
    }
  });
}

// All that a block does.
template <class Shape, class Block>
LONGNET_HOST_DEVICE void attend_tile(Block& block, const TileInputs& in, const TileRef& tile) {
  const TileTask& task = in.tasks[tile.task];
  RunCursor here(in.runs, task.first_run, task.first_run + task.num_runs), ahead = here;
  block.warps([&](auto& w, auto warp, int index) { w.begin(warp, index * 16 * Shape::kM); });
  if (tile.keys > 0) {
    load_queries<Shape>(block, in, tile);
    load_keys<Shape>(block, in, tile, 0, 0, ahead);
    block.commit();
  }
  int stage = 0;
  for (int64_t key = 0; key < tile.keys; key += Shape::kKeys, stage ^= 1) {
    block.wait_for_copies();
    block.sync();  // the tile has arrived for all, and nobody reads the other stage any more
    if (key + Shape::kKeys < tile.keys) {
      ahead.advance_to(key + Shape::kKeys);
      load_keys<Shape>(block, in, tile, stage ^ 1, key + Shape::kKeys, ahead);
      block.commit();
    }
    here.advance_to(key);
    block.warps([&](auto& w, auto, int) {
      if (key == 0) w.load_queries();
      w.step(in, tile, stage, key, here);
    });
  }
  const TileRows to = tile_rows(task, in);
  block.warps([&](auto& w, auto, int) { w.finish(to, tile.row); });
}

}  // namespace longnet
