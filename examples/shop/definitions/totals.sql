CREATE MATERIALIZED VIEW totals COMMENT 'What each country has ordered' AS
SELECT country, count(*) AS orders, sum(total) AS total
FROM orders JOIN customers ON orders.customer = customers.id
GROUP BY country
