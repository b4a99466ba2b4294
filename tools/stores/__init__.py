"""Operations on the store of a stopped member, and on copies of stores."""
