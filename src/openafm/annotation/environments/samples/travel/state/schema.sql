CREATE TABLE travelers (id TEXT PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL, balance_eur REAL NOT NULL);
CREATE TABLE flights (
  id TEXT PRIMARY KEY, origin TEXT NOT NULL, destination TEXT NOT NULL, departs TEXT NOT NULL, arrives TEXT NOT NULL,
  seats INTEGER NOT NULL, price_eur REAL NOT NULL
);
CREATE TABLE hotels (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, rooms INTEGER NOT NULL, night_eur REAL NOT NULL, stars INTEGER NOT NULL
);
CREATE TABLE bookings (
  id TEXT PRIMARY KEY, traveler TEXT NOT NULL REFERENCES travelers (id), flight TEXT, hotel TEXT, first_night TEXT,
  nights INTEGER, price_eur REAL NOT NULL, bags INTEGER NOT NULL DEFAULT 0, status TEXT NOT NULL
);
