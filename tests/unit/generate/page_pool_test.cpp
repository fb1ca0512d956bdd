#include "generate/page_pool.hpp"

#include <gtest/gtest.h>

namespace trireme::test {
namespace {

using generate::PagePool;
using Tokens = std::vector<int32_t>;

TEST(PagePool, PagesComeBackWhenNobodyHoldsThem) {
  PagePool pool(2, 2);
  const auto a = pool.allocate(), b = pool.allocate();
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(pool.allocate());
  pool.retain(*a);
  pool.release(*a);
  EXPECT_EQ(pool.available(), 0);
  pool.release(*a);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.allocate(), a);
}

TEST(PagePool, ContentIsFoundAgainAfterItsParent) {
  PagePool pool(4, 2);
  const int32_t first = *pool.allocate(), second = *pool.allocate();
  const auto begin = pool.publish(first, 0, Tokens{1, 2});
  const auto next = pool.publish(second, begin, Tokens{3, 4});
  EXPECT_NE(begin, next);
  pool.release(second);
  pool.release(first);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_FALSE(pool.find(0, Tokens{3, 4}));  // the same tokens after something else
  EXPECT_EQ(pool.find(0, Tokens{1, 2}), first);
  EXPECT_EQ(pool.find(begin, Tokens{3, 4}), second);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(pool.references(first), 1);
}

TEST(PagePool, TheLeastRecentlyUsedContentGoesFirst) {
  PagePool pool(2, 1);
  const int32_t a = *pool.allocate(), b = *pool.allocate();
  pool.publish(a, 0, Tokens{1});
  pool.publish(b, 0, Tokens{2});
  pool.release(a);
  pool.release(b);
  pool.release(*pool.find(0, Tokens{1}));  // used again
  EXPECT_EQ(pool.allocate(), b);
  EXPECT_FALSE(pool.find(0, Tokens{2}));
  EXPECT_TRUE(pool.find(0, Tokens{1}));
}

TEST(PagePool, EqualContentHasOneName) {
  PagePool pool(3, 1);
  const int32_t a = *pool.allocate(), b = *pool.allocate();
  const auto name = pool.publish(a, 0, Tokens{1});
  EXPECT_EQ(pool.publish(b, 0, Tokens{1}), name);
  pool.release(b);  // not in the index: free at once
  pool.release(a);
  EXPECT_EQ(pool.find(0, Tokens{1}), a);
}

TEST(PagePool, OtherWeightsForgetContents) {
  PagePool pool(2, 1);
  const int32_t a = *pool.allocate(), b = *pool.allocate();
  pool.publish(a, 0, Tokens{1});
  pool.publish(b, 0, Tokens{2});
  pool.release(a);
  pool.forget_contents();
  EXPECT_FALSE(pool.find(0, Tokens{1}));
  EXPECT_FALSE(pool.find(0, Tokens{2}));
  EXPECT_EQ(pool.available(), 1);
  pool.release(b);
  EXPECT_EQ(pool.available(), 2);
}

}  // namespace
}  // namespace trireme::test
