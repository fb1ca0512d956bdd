// Packing of strided runs and the delta stream over them, element by element.
#include "weightsync/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "unit/weightsync/whole_delta.hpp"
#include "weightsync/digest.hpp"

namespace trireme::weightsync {
namespace {

using Word = uint16_t;
using Words = std::vector<Word>;

// Two tensors, 53 x 53 on the source's side and 40 x 40 on the target's, and random runs that touch
// no target element twice.
struct Strided {
  static constexpr int64_t side = 40;
  static constexpr int64_t source_side = 53;
  std::vector<Words> source, target;
  std::vector<Piece> pieces;
  int64_t elements = 0;

  explicit Strided(uint64_t seed) : random(seed) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      source.emplace_back(source_side * source_side);
      target.emplace_back(side * side, Word{0xdead});
      for (Word& word : source.back()) word = static_cast<Word>(random());
      for (int64_t row = 0; row < side;) row = add(static_cast<uint32_t>(tensor), row);
    }
  }
  std::vector<const void*> sources() const { return {source[0].data(), source[1].data()}; }
  std::vector<void*> targets() { return {target[0].data(), target[1].data()}; }

  // What the runs say: for each packed element its place in source and target.
  template <class Visit>
  void for_each(const Visit& visit) {
    int64_t packed = 0;
    for (const Piece& piece : pieces) {
      for (int64_t e = 0; e < piece.run.elements(); ++e, ++packed) {
        const int64_t row = e / piece.run.columns, column = e % piece.run.columns;
        visit(packed,
              source[piece.tensor][static_cast<size_t>(piece.run.source_offset +
                                                       row * piece.run.source_stride + column)],
              target[piece.tensor][static_cast<size_t>(piece.run.target_offset +
                                                       row * piece.run.target_stride + column)]);
      }
    }
  }

  std::mt19937_64 random;

 private:
  int64_t add(uint32_t tensor, int64_t row) {
    const int64_t rows = std::min<int64_t>(1 + static_cast<int64_t>(random() % 5), side - row);
    const int64_t columns = 1 + static_cast<int64_t>(random() % side);
    const int64_t shift =
        static_cast<int64_t>(random() % static_cast<uint64_t>(source_side - columns + 1));
    const int64_t up =
        static_cast<int64_t>(random() % static_cast<uint64_t>(source_side - rows + 1));
    if (random() % 4 != 0) {
      pieces.push_back({tensor,
                        {rows, columns, up * source_side + shift, source_side,
                         row * side + side - columns, side}});
      elements += rows * columns;
    }
    return row + rows;
  }
};

TEST(Packing, MovesEveryElementOfEveryRun) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Strided runs(seed);
    Words packed(static_cast<size_t>(runs.elements));
    pack(copier_of(false), runs.pieces, sizeof(Word), runs.sources(),
         reinterpret_cast<std::byte*>(packed.data()));
    runs.for_each([&](int64_t place, Word from, Word) {
      ASSERT_EQ(packed[static_cast<size_t>(place)], from);
    });
    unpack(copier_of(false), runs.pieces, sizeof(Word),
           reinterpret_cast<const std::byte*>(packed.data()), runs.targets());
    runs.for_each([&](int64_t, Word from, Word to) { ASSERT_EQ(to, from); });
    const auto untouched = std::accumulate(
        runs.target.begin(), runs.target.end(), int64_t{0}, [](int64_t sum, const Words& words) {
          return sum + std::count(words.begin(), words.end(), Word{0xdead});
        });
    EXPECT_LE(std::abs(2 * Strided::side * Strided::side - runs.elements - untouched), 2)
        << "nothing beside the runs is written";
    Strided local(seed);
    start_local(copier_of(false), local.pieces, sizeof(Word), local.sources(), local.targets());
    EXPECT_EQ(local.target, runs.target);
  }
}

int64_t counted_copies = 0;

// Of a matrix by buckets that end inside of rows, as of one whose columns are cut, one copy is
// made, and of what lies apart one each.
TEST(Packing, LocalPiecesThatContinueAreOneCopy) {
  constexpr int64_t side = 20, narrow = 7;
  Words from(2 * side * side), to(2 * side * side);
  std::iota(from.begin(), from.end(), Word{1});
  const std::vector<const void*> sources{from.data(), from.data() + side * side};
  const std::vector<void*> targets{to.data(), to.data() + side * side};
  static constexpr Copier counting{[](const comm::RowCopy& copy) {
                                     ++counted_copies;
                                     copier_of(false).start(copy);
                                   },
                                   [] {}};
  const auto copies = [&](const std::vector<Piece>& pieces) {
    counted_copies = 0;
    std::ranges::fill(to, Word{0});
    start_local(counting, pieces, sizeof(Word), sources, targets);
    return counted_copies;
  };
  EXPECT_EQ(copies({{0, {3, side, 0, side, 0, side}},
                    {0, {1, 5, 3 * side, side, 3 * side, side}},
                    {0, {1, 15, 3 * side + 5, side, 3 * side + 5, side}},
                    {0, {16, side, 4 * side, side, 4 * side, side}}}),
            1);
  EXPECT_TRUE(std::equal(from.begin(), from.begin() + side * side, to.begin()));
  EXPECT_EQ(copies({{0, {4, narrow, 2, side, 0, narrow}},
                    {0, {6, narrow, 4 * side + 2, side, 4 * narrow, narrow}}}),
            1);
  for (int64_t row = 0; row < 10; ++row) {
    for (int64_t column = 0; column < narrow; ++column)
      EXPECT_EQ(to[static_cast<size_t>(row * narrow + column)],
                from[static_cast<size_t>(row * side + 2 + column)]);
  }
  EXPECT_EQ(copies({{0, {2, narrow, 0, side, 0, narrow}},
                    {0, {2, narrow, 3 * side, side, 2 * narrow, narrow}}}),
            2)
      << "a gap in the source";
  EXPECT_EQ(copies({{0, {2, narrow, 0, side, 0, narrow}},
                    {0, {2, narrow - 1, 2 * side, side, 2 * narrow, narrow}}}),
            2)
      << "shorter rows";
  EXPECT_EQ(copies({{0, {side, side, 0, side, 0, side}}, {1, {2, side, 0, side, 0, side}}}), 2)
      << "another tensor, which happens to lie behind: it may be another allocation";
}

// Stores around the caches write what plain ones do: rows of all lengths, pages and lines at any
// offset, and nothing beside them.
TEST(Packing, StreamingCopiesWriteTheSame) {
  const Copier& streaming = copier_to_targets(false, int64_t{1} << 30);
#if defined(__x86_64__)
  ASSERT_NE(&streaming, &copier_of(false));
#endif
  EXPECT_EQ(&copier_to_targets(false, 4096), &copier_of(false))
      << "what fits into a cache stays there";
  std::mt19937_64 random(7);
  std::vector<std::byte> from(300000), plain(400000), streamed(400000);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 400; ++round) {
    const int64_t bytes = static_cast<int64_t>(random() % (round % 2 == 0 ? 300 : 40000));
    const int64_t gap = static_cast<int64_t>(random() % 200);
    const int64_t to_stride = round % 3 == 0 ? (bytes + gap + 63) / 64 * 64 : bytes + gap;
    const int64_t from_stride = bytes + static_cast<int64_t>(random() % 200);
    const int64_t rows = std::min<int64_t>(1 + static_cast<int64_t>(random() % 11),
                                           290000 / std::max<int64_t>(1, from_stride));
    const size_t at = random() % 130;
    const auto copy_to = [&](std::vector<std::byte>& to) {
      std::byte* const aligned = to.data() + (-reinterpret_cast<intptr_t>(to.data()) & 63);
      return comm::RowCopy{aligned + (round % 3 == 0 ? at / 64 * 64 : at),
                           from.data() + at % 7,
                           rows,
                           bytes,
                           to_stride,
                           from_stride};
    };
    copier_of(false).start(copy_to(plain));
    streaming.start(copy_to(streamed));
    streaming.finish();
    const auto content = [](const std::vector<std::byte>& of) {
      const auto skip = static_cast<size_t>(-reinterpret_cast<intptr_t>(of.data()) & 63);
      return std::span(of).subspan(skip, of.size() - 64);
    };
    ASSERT_TRUE(std::ranges::equal(content(plain), content(streamed)))
        << rows << " rows of " << bytes << " bytes, " << to_stride << " apart, at " << at;
  }
}

// Any share of changes, fed to the encoder in rows of any length, applied in place on strided
// targets.
TEST(Packing, DeltasGoStraightToTheirPlaces) {
  for (const int percent : {0, 1, 30, 100}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Strided runs(seed);
      Words before(static_cast<size_t>(runs.elements));
      pack(copier_of(false), runs.pieces, sizeof(Word), runs.sources(),
           reinterpret_cast<std::byte*>(before.data()));
      unpack(copier_of(false), runs.pieces, sizeof(Word),
             reinterpret_cast<const std::byte*>(before.data()), runs.targets());
      Words now = before;
      int64_t changed = 0;
      for (Word& word : now) {
        if (static_cast<int>(runs.random() % 100) >= percent) continue;
        word ^= static_cast<Word>(1u << runs.random() % 16);
        ++changed;
      }
      std::vector<std::byte> out(now.size() * 4 + 64);
      DeltaEncoder encoder(out, sizeof(Word));
      for (size_t at = 0; at < now.size();) {
        const size_t some = std::min<size_t>(1 + runs.random() % 200, now.size() - at);
        ASSERT_TRUE(encoder.add(reinterpret_cast<const std::byte*>(now.data() + at),
                                reinterpret_cast<const std::byte*>(before.data() + at),
                                static_cast<int64_t>(some)));
        at += some;
      }
      const size_t bytes = encoder.finish();
      EXPECT_EQ(encoder.changed(), changed);
      EXPECT_EQ(unpack_delta(runs.pieces, sizeof(Word), std::span(out).first(bytes), runs.elements,
                             runs.targets()),
                changed);
      runs.for_each([&](int64_t place, Word, Word to) {
        ASSERT_EQ(to, now[static_cast<size_t>(place)]) << percent << " %";
      });
    }
  }
}

// How the elements are dealt out to add() says nothing to the receiver, also where a row crosses a
// block's end.
TEST(Packing, DeltasDoNotDependOnTheRowsTheyCameIn) {
  std::mt19937_64 random(3);
  Words before(2 * delta_block + 777);
  for (Word& word : before) word = static_cast<Word>(random());
  Words now = before;
  for (size_t i = 0; i < now.size(); i += 1 + random() % 90) now[i] ^= 1;
  for (const auto block_end : {delta_block, 2 * delta_block})
    now[static_cast<size_t>(block_end)] = before[static_cast<size_t>(block_end)] ^ 1;
  const auto bytes_of = [](const Words& words, size_t at) {
    return reinterpret_cast<const std::byte*>(words.data() + at);
  };
  std::vector<std::byte> whole(now.size() * 2), in_rows(whole.size());
  const size_t size = encode_delta(std::as_bytes(std::span(now)), std::as_bytes(std::span(before)),
                                   sizeof(Word), whole);
  ASSERT_GT(size, 0u);
  DeltaEncoder encoder(in_rows, sizeof(Word));
  for (size_t at = 0; at < now.size();) {
    const size_t some = std::min<size_t>(1 + random() % 5000, now.size() - at);
    ASSERT_TRUE(encoder.add(bytes_of(now, at), bytes_of(before, at), static_cast<int64_t>(some)));
    at += some;
  }
  EXPECT_EQ(encoder.finish(), size);
  EXPECT_EQ(in_rows, whole);
}

// The digest that a bucket carries is another one whichever bit of it flips.
TEST(Digest, SeesEveryFlippedBit) {
  std::vector<unsigned char> bucket(601);
  std::iota(bucket.begin(), bucket.end(), static_cast<unsigned char>(3));
  for (const size_t size : {size_t{1}, size_t{2}, size_t{17}, size_t{240},
                            bucket.size()}) {  // XXH3 has other code for short inputs
    const auto digest = XXH3_64bits(bucket.data(), size);
    for (size_t bit = 0; bit < size * 8; ++bit) {
      bucket[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
      EXPECT_NE(XXH3_64bits(bucket.data(), size), digest)
          << "bit " << bit << " of " << size << " bytes";
      bucket[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    }
  }
}

}  // namespace
}  // namespace trireme::weightsync
