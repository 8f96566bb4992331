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
#include <cmath>
#include <cstdint>

#include "kernels/cuda/tile_layout.h"

namespace longnet {

// What one warp keeps between key tiles, and what it does with each.
template <class Shape, class Warp>
class WarpTile {
 public:
  template <class T>
  using Reg = typename Warp::template Reg<T>;
  static constexpr int kM = Shape::kM, kDim = Shape::kDim, kKeys = Shape::kKeys;

  LONGNET_HOST_DEVICE void begin(Warp warp, int first_row) {
    warp_ = warp;
    first_row_ = first_row;
    warp_.lanes([&](int lane) {
      LONGNET_UNROLL
      for (int m = 0; m < kM; ++m) {
        LONGNET_UNROLL
        for (int h = 0; h < 2; ++h) {
          max_[m][h][lane] = -INFINITY;
          sum_[m][h][lane] = 0.0f;
        }
        LONGNET_UNROLL
        for (int n = 0; n < kDim / 8; ++n) {
          LONGNET_UNROLL
          for (int i = 0; i < 4; ++i) o_[m][n][i][lane] = 0.0f;
        }
      }
    });
  }

  LONGNET_HOST_DEVICE void load_queries() {
    if constexpr (Shape::kQInRegisters) {
      LONGNET_UNROLL
      for (int k = 0; k < kDim / 16; ++k) load_query_fragments(q_[k], k);
    }
  }

  // Keys [key, key + kKeys) of the task are in stage `stage`; `cursor` stands at or before them.
  LONGNET_HOST_DEVICE void step(const TileInputs& in, const TileRef& tile, int stage, int64_t key,
                                const RunCursor& cursor) {
    Reg<float> s[kM][kKeys / 8][4];
    scores(s, stage);
    if (key + kKeys > tile.unmasked) mask(s, in, tile, key, cursor);
    softmax(s, in.scale_log2);
    add_values(s, stage);
  }

  LONGNET_HOST_DEVICE void finish(const TileInputs& in, const TileRef& tile) {
    const TileTask& task = in.tasks[tile.task];
    LONGNET_UNROLL
    for (int m = 0; m < kM; ++m) {
      LONGNET_UNROLL
      for (int h = 0; h < 2; ++h) {
        warp_.quad_sum(sum_[m][h]);
        Reg<float> old;
        if (in.merge) {  // all four lanes of a row read its LSE before one of them writes it
          warp_.lanes([&](int lane) {
            const int row = row_of(tile, lane, m, h);
            old[lane] = row < task.rows ? task.lse[row * task.lse_stride] : -INFINITY;
          });
          warp_.sync();
        }
        warp_.lanes([&](int lane) {
          const int row = row_of(tile, lane, m, h);
          if (row >= task.rows) return;
          const float sum = sum_[m][h][lane];
          float lse = sum > 0.0f ? (max_[m][h][lane] + Warp::log2(sum)) * 0.69314718056f
                                 : -INFINITY;  // max is in units of log2 by now
          float scale = sum > 0.0f ? in.output_scale / sum : 0.0f, keep = 0.0f;
          if (in.merge) {
            const float top = fmaxf(lse, old[lane]);
            if (top == -INFINITY) return;  // neither saw a key: O and LSE stay
            const float mine = Warp::exp2((lse - top) * 1.44269504089f);
            const float theirs = Warp::exp2((old[lane] - top) * 1.44269504089f);
            scale *= mine / (mine + theirs);
            keep = theirs / (mine + theirs);
            lse = top + Warp::log2(mine + theirs) * 0.69314718056f;
          }
          if ((lane & 3) == 0) task.lse[row * task.lse_stride] = lse;
          float* const out = task.o + row * task.o_stride + (lane & 3) * 2;
          LONGNET_UNROLL
          for (int n = 0; n < kDim / 8; ++n) {
            if (n * 8 >= in.head_dim) break;
            float x = o_[m][n][2 * h][lane] * scale, y = o_[m][n][2 * h + 1][lane] * scale;
            if (in.merge) {
              x += keep * out[n * 8];
              y += keep * out[n * 8 + 1];
            }
            Warp::store2(out + n * 8, x, y);
          }
        });
      }
    }
  }

 private:
  using Fragment = Reg<uint32_t>[4];

  LONGNET_HOST_DEVICE int row_of(const TileRef& tile, int lane, int m, int h) const {
    return tile.row + first_row_ + m * 16 + accumulator_row(lane, 2 * h);
  }

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

  LONGNET_HOST_DEVICE void scores(Reg<float> (&s)[kM][kKeys / 8][4], int stage) {
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

  LONGNET_HOST_DEVICE void mask(Reg<float> (&s)[kM][kKeys / 8][4], const TileInputs& in,
                                const TileRef& tile, int64_t key, const RunCursor& cursor) {
    const TileTask& task = in.tasks[tile.task];
    warp_.lanes([&](int lane) {
      RunCursor at = cursor;
      LONGNET_UNROLL
      for (int n = 0; n < kKeys / 8; ++n) {
        LONGNET_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int64_t index = key + n * 8 + accumulator_column(lane, i);
          at.advance_to(index);
          const bool hidden = index >= tile.keys;
          const int64_t token = at.token(index);
          LONGNET_UNROLL
          for (int m = 0; m < kM; ++m) {
            LONGNET_UNROLL
            for (int h = 0; h < 2; ++h) {
              const int64_t position = task.q_first + row_of(tile, lane, m, h) * task.q_step;
              if (hidden || (in.causal && token > position)) s[m][n][2 * h + i][lane] = -INFINITY;
            }
          }
        }
      }
    });
  }

  // Scores become exp2(score - max); max_ (in units of log2) and sum_ (of this lane's columns)
  // follow, and O is rescaled.
  LONGNET_HOST_DEVICE void softmax(Reg<float> (&s)[kM][kKeys / 8][4], float scale_log2) {
    LONGNET_UNROLL
    for (int m = 0; m < kM; ++m) {
      LONGNET_UNROLL
      for (int h = 0; h < 2; ++h) {
        Reg<float> top;
        warp_.lanes([&](int lane) {
          float most = fmaxf(s[m][0][2 * h][lane], s[m][0][2 * h + 1][lane]);
          LONGNET_UNROLL
          for (int n = 1; n < kKeys / 8; ++n)
            most = fmaxf(most, fmaxf(s[m][n][2 * h][lane], s[m][n][2 * h + 1][lane]));
          top[lane] = most;
        });
        warp_.quad_max(top);
        warp_.lanes([&](int lane) {
          const float max = fmaxf(max_[m][h][lane], top[lane] * scale_log2);
          const float base = max == -INFINITY ? 0.0f : max;  // no key seen so far
          const float shrink = Warp::exp2(max_[m][h][lane] - base);
          max_[m][h][lane] = max;
          float sum = sum_[m][h][lane] * shrink;
          LONGNET_UNROLL
          for (int n = 0; n < kKeys / 8; ++n) {
            LONGNET_UNROLL
            for (int i = 0; i < 2; ++i) {
              float& x = s[m][n][2 * h + i][lane];
              x = Warp::exp2(fmaf(x, scale_log2, -base));
              sum += x;
            }
          }
          sum_[m][h][lane] = sum;
          LONGNET_UNROLL
          for (int n = 0; n < kDim / 8; ++n) {
            o_[m][n][2 * h][lane] *= shrink;
            o_[m][n][2 * h + 1][lane] *= shrink;
          }
        });
      }
    }
  }

  // O += P V. Two neighbouring accumulators of S are, rounded, one A operand.
  LONGNET_HOST_DEVICE void add_values(Reg<float> (&p)[kM][kKeys / 8][4], int stage) {
    LONGNET_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      Fragment a[kM];
      warp_.lanes([&](int lane) {
        LONGNET_UNROLL
        for (int m = 0; m < kM; ++m) {
          LONGNET_UNROLL
          for (int i = 0; i < 4; ++i) {
            const auto& pair = p[m][2 * k + (i >> 1)];
            a[m][i][lane] = Warp::pack(pair[2 * (i & 1)][lane], pair[2 * (i & 1) + 1][lane]);
          }
        }
      });
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
          warp_.mma(o_[m][2 * n], a[m], b[0], b[1]);
          warp_.mma(o_[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  Warp warp_;
  int first_row_ = 0;
  Reg<float> o_[kM][kDim / 8][4];
  Reg<float> max_[kM][2], sum_[kM][2];
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
  block.warps([&](auto& w, auto, int) { w.finish(in, tile); });
}

}  // namespace longnet
