"""Dumps as the programs of other hosts write them, in small. The shapes are facts of these programs' output, found in:

mysqldump 8.0 of a managed server, with SQL_LOG_BIN and GTID_PURGED (mysqlbin/dba_note); HeidiSQL 11, with CREATE
DATABASE, USE and DELIMITER // (mimuc/omm-ws2425, DenysVuika/collab.js); phpMyAdmin 5 and Adminer 4, with ALGORITHM and
DEFINER (drush-ops/drush#2791, ddev/ddev#1902); pg_dump 17, with transaction_timeout (pgadmin-org/pgadmin4#8171,
discourse/discourse#41632) and owners (dokploy/dokploy#1860).
"""

MYSQL_8 = rb"""mysqldump: [Warning] Using a password on the command line interface can be insecure.
Warning: A partial dump from a server that has GTIDs will by default include the GTIDs of all transactions.
-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
SET @MYSQLDUMP_TEMP_LOG_BIN = @@SESSION.SQL_LOG_BIN;
SET @@SESSION.SQL_LOG_BIN= 0;
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '7664fad8-49fd-11e8-a546-4201c0a8010a:1-766741,
90e79fc1-49fd-11e8-a6dd-4201c0a8010b:1-20227';
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `shop` /*!40100 DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci */;
USE `shop`;
CREATE TABLE `u` (
  `n` varchar(200) COLLATE utf8mb4_0900_ai_ci DEFAULT 'utf8mb4_0900_ai_ci', -- don't
  `c` varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs COMMENT 'USE `other`;'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;
INSERT INTO `u` VALUES ('utf8mb4_0900_ai_ci','it''s; \'USE `other`;'),('
CREATE DEFINER=`root`@`%` TRIGGER x;
GRANT ALL ON *.* TO x;','b');
/*!50003 SET collation_connection  = utf8mb4_0900_ai_ci */ ;
DELIMITER ;;
/*!50003 CREATE*/ /*!50017 DEFINER=`root`@`%`*/ /*!50003 TRIGGER `t` BEFORE INSERT ON `u` FOR EACH ROW BEGIN
  SET NEW.n = 'DEFINER=`root`@`%`'; SET NEW.c = 'x;;y';
END */;;
DELIMITER ;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`shop`@`localhost` SQL SECURITY DEFINER */
/*!50001 VIEW `v` AS select `u`.`n` AS `n` from `u`*/;
SET @@SESSION.SQL_LOG_BIN = @MYSQLDUMP_TEMP_LOG_BIN;
-- Dump completed on 2026-01-02  3:04:05
"""
PG_17 = rb"""--
-- PostgreSQL database dump
--
\restrict hgN0aPVbr7aVkqE4mVkvBHDXvFcEHCKLWlbb5R6XsMB3f0GKFqsXbRFuMyhU4fF
-- Dumped by pg_dump version 17.2
SET statement_timeout = 0;
SET transaction_timeout = 0;
CREATE SCHEMA public;
ALTER SCHEMA public OWNER TO pg_database_owner;
COMMENT ON EXTENSION pgcrypto IS 'cryptographic functions';
CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS $_$
BEGIN
  -- it's ours
  EXECUTE 'ALTER TABLE x OWNER TO y; SELECT $1' USING 1;
  RETURN NEW;
END
$_$;
ALTER FUNCTION public.f() OWNER TO shop;
CREATE TABLE public."o'r;d" (
    id integer, word text DEFAULT E'it\'s; GRANT ALL'::text, "when" date DEFAULT date'2026-01-02');
ALTER TABLE public."o'r;d" OWNER TO "shop-user";
COPY public."o'r;d" (id, word) FROM stdin;
1	ALTER TABLE x OWNER TO y;
2	$_$ it's "
3	\\.
\.

COPY public.empty (id) FROM stdin;
\.
REVOKE USAGE ON SCHEMA public FROM PUBLIC;
GRANT SELECT ON TABLE public."o'r;d" TO reader;
ALTER DEFAULT PRIVILEGES FOR ROLE shop IN SCHEMA public GRANT SELECT ON TABLES TO reader;
\unrestrict hgN0aPVbr7aVkqE4mVkvBHDXvFcEHCKLWlbb5R6XsMB3f0GKFqsXbRFuMyhU4fF
-- PostgreSQL database dump complete
"""
PHPMYADMIN = rb"""-- phpMyAdmin SQL Dump
-- version 5.2.1
-- https://www.phpmyadmin.net/
--
-- Host: localhost:3306
-- Server version: 8.0.36

SET SQL_MODE = "NO_AUTO_VALUE_ON_ZERO";
START TRANSACTION;
SET time_zone = "+00:00";

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!40101 SET NAMES utf8mb4 */;

--
-- Database: `shop`
--
CREATE DATABASE IF NOT EXISTS `shop` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci;
USE `shop`;

DELIMITER $$
CREATE DEFINER=`root`@`localhost` PROCEDURE `p` ()   BEGIN SELECT 'it$'; SELECT 2; END$$

DELIMITER ;

CREATE TABLE `u` (
  `n` varchar(40) COLLATE utf8mb4_0900_ai_ci NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

INSERT INTO `u` (`n`) VALUES
('it\'s; USE `other`;'),
('a\r\nb');

CREATE TABLE `v` (
`n` varchar(40)
);

DROP TABLE IF EXISTS `v`;

CREATE ALGORITHM=UNDEFINED DEFINER=`shop`@`localhost` SQL SECURITY DEFINER VIEW `v`  AS SELECT `u`.`n` AS `n` FROM `u` ;
COMMIT;

/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;
"""
ADMINER = rb"""-- Adminer 4.8.1 MySQL 8.0.29 dump

SET NAMES utf8;
SET time_zone = '+00:00';
SET foreign_key_checks = 0;
SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO';

DELIMITER ;;

CREATE DEFINER=`root`@`%` PROCEDURE `p`()
BEGIN SELECT 1; SELECT 2; END;;

DELIMITER ;

SET NAMES utf8mb4;

DROP TABLE IF EXISTS `u`;
CREATE TABLE `u` (
  `n` varchar(60) COLLATE utf8mb4_0900_ai_ci NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

INSERT INTO `u` (`n`) VALUES
('it\'s; USE `other`;'),
('
CREATE DEFINER=`root`@`%` VIEW x;
USE `other`;');

DROP VIEW IF EXISTS `v`;
CREATE TABLE `v` (`n` varchar(60));

DROP TABLE IF EXISTS `v`;
CREATE ALGORITHM=UNDEFINED DEFINER=`shop`@`localhost` SQL SECURITY DEFINER VIEW `v` AS select `u`.`n` AS `n` from `u`;

-- 2026-01-02 03:04:05
"""
HEIDISQL = rb"""-- --------------------------------------------------------
-- Host:                         127.0.0.1
-- Server Version:               8.0.36 - MySQL Community Server - GPL
-- HeidiSQL Version:             11.0.0.5919
-- --------------------------------------------------------

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;

CREATE DATABASE IF NOT EXISTS `shop` /*!40100 DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci */
    /*!80016 DEFAULT ENCRYPTION='N' */;
USE `shop`;

DELIMITER //
CREATE DEFINER=`root`@`localhost` PROCEDURE `p`()
BEGIN
  SELECT 1 / 2; -- it's a half
  SELECT 2;
END//
DELIMITER ;

CREATE TABLE IF NOT EXISTS `u` (
  `n` varchar(40) COLLATE utf8mb4_0900_ai_ci NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

/*!40000 ALTER TABLE `u` DISABLE KEYS */;
INSERT INTO `u` (`n`) VALUES
	('it\'s; USE `other`;'),
	('b');
/*!40000 ALTER TABLE `u` ENABLE KEYS */;

CREATE TABLE `v` (
	`n` VARCHAR(40) NOT NULL
) ENGINE=MyISAM;

DROP TABLE IF EXISTS `v`;
CREATE ALGORITHM=UNDEFINED DEFINER=`root`@`localhost` SQL SECURITY DEFINER VIEW `v` AS select `u`.`n` AS `n` from `u`;

/*!40101 SET SQL_MODE=IFNULL(@OLD_SQL_MODE, '') */;
/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;
"""
