// The heap of bpe.cpp against the definition of byte-pair encoding: join the leftmost pair of the
// lowest rank until none is left.
#include "text/bpe.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/text_files.hpp"

namespace trireme::text {
namespace {

using Ids = std::vector<TokenId>;

std::array<TokenId, 256> every_byte() {
  std::array<TokenId, 256> ids{};
  for (size_t byte = 0; byte < 256; ++byte) ids[byte] = static_cast<TokenId>(byte);
  return ids;
}

// Merges of random tokens over the bytes a, b, c, ...: every pair is joined by one rule at most, as
// in a trained file.
std::vector<Merge> random_merges(std::mt19937& random, size_t count, int letters) {
  Ids tokens;
  for (int letter = 0; letter < letters; ++letter) tokens.push_back('a' + letter);
  std::map<std::pair<TokenId, TokenId>, bool> known;
  std::vector<Merge> merges;
  while (merges.size() < count) {
    const std::pair pair{tokens[random() % tokens.size()], tokens[random() % tokens.size()]};
    if (!known.emplace(pair, true).second) continue;
    // Now and then two pairs make the same token, as "ab" + "c" and "a" + "bc" do.
    const auto joined = random() % 8 == 0 && !merges.empty()
                            ? merges.back().joined
                            : static_cast<TokenId>(256 + merges.size());
    merges.push_back({pair.first, pair.second, joined});
    tokens.push_back(joined);
  }
  return merges;
}

Ids merged_by_definition(const std::string& word, const std::vector<Merge>& merges) {
  Ids ids;
  for (const char c : word) ids.push_back(static_cast<uint8_t>(c));
  const auto rank_at = [&](size_t i) {
    const auto joins = [&](const Merge& merge) {
      return merge.left == ids[i] && merge.right == ids[i + 1];
    };
    return std::find_if(merges.begin(), merges.end(), joins) - merges.begin();
  };
  for (;;) {
    auto best = std::ssize(merges);
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      if (rank_at(i) < best) {
        best = rank_at(i);
        place = i;
      }
    }
    if (best == std::ssize(merges)) return ids;
    ids[place] = merges[static_cast<size_t>(best)].joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(Bpe, JoinsTheLeftmostPairOfTheLowestRank) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const int letters = 1 + static_cast<int>(random() % 4);
    const size_t pairs = static_cast<size_t>(letters * letters);
    const auto merges = random_merges(
        random, round % 10 == 0 ? 0 : std::min<size_t>(1 + random() % 60, pairs + 20), letters);
    const Bpe bpe(Bpe::From::bytes, {every_byte(), {}}, merges);
    WordScratch scratch;
    for (int i = 0; i < 60; ++i) {
      std::string word(random() % 40, '\0');
      for (char& c : word)
        c = static_cast<char>('a' + static_cast<int>(random() % static_cast<unsigned>(letters)));
      const Ids expected = merged_by_definition(word, merges);
      Ids ids{-7};  // what is there already stays
      bpe.encode(word, scratch, ids);
      bpe.encode(word, scratch, ids);  // the second time out of the cache
      Ids twice{-7};
      for (int copy = 0; copy < 2; ++copy)
        twice.insert(twice.end(), expected.begin(), expected.end());
      ASSERT_EQ(ids, twice) << word;
    }
  }
}

TEST(Bpe, OfAPairThatIsListedTwiceTheLastRankCounts) {
  // a+a would come first by its first rank; by its last one b+a does.
  const std::vector<Merge> merges{{'a', 'a', 256}, {'b', 'a', 257}, {'a', 'a', 258}};
  WordScratch scratch;
  Ids ids;
  Bpe(Bpe::From::bytes, {every_byte(), {}}, merges).encode("baa", scratch, ids);
  EXPECT_EQ(ids, (Ids{257, 'a'}));
  ids.clear();
  Bpe(Bpe::From::bytes, {every_byte(), {}}, merges).encode("aac", scratch = {}, ids);
  EXPECT_EQ(ids, (Ids{258, 'c'}));
}

TEST(Bpe, WholeWordsAreNotMerged) {
  Bpe bpe(Bpe::From::bytes, {every_byte(), {}}, std::vector<Merge>{{'a', 'b', 256}});
  bpe.set_whole_words({{"aba", 900}});
  WordScratch scratch;
  Ids ids;
  for (const char* word : {"aba", "abab", "ab", ""}) bpe.encode(word, scratch, ids);
  EXPECT_EQ(ids, (Ids{900, 256, 256, 256}));
}

// A word longer than what is cached, and one whose merges cascade over its whole length.
TEST(Bpe, LongWords) {
  std::vector<Merge> doubling;
  TokenId token = 'a';
  for (TokenId rank = 0; rank < 20; ++rank) {
    doubling.push_back({token, token, 256 + rank});
    token = 256 + rank;
  }
  const Bpe bpe(Bpe::From::bytes, {every_byte(), {}}, doubling);
  WordScratch scratch;
  Ids ids;
  bpe.encode(std::string((size_t{1} << 16) - 1, 'a'), scratch, ids);  // binary digits of the length
  Ids expected;
  for (TokenId rank = 14; rank >= 0; --rank) expected.push_back(256 + rank);
  expected.push_back('a');
  EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace trireme::text
